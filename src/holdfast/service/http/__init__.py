"""The HTTP layer of the service: routes, request decoding, errors, OpenAPI, and the uvicorn protocol."""
