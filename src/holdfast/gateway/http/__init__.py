"""HTTP/1.1 to upstreams: connections, response parsing, header filters, and content encodings."""
