// What is asked of the service. All paths are of this origin; a refusal is an error that says the way out.

export class Refused extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

let clockOffset = 0;

/** The service's time in milliseconds: the browser's clock may be another. */
export const now = () => Date.now() + clockOffset;

async function asked(method, path, { body, headers } = {}) {
  let response;
  try {
    response = await fetch(path, {
      method,
      headers: { ...(body === undefined ? {} : { "content-type": "application/json" }), ...headers },
      body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "same-origin",
    });
  } catch {
    throw new Refused(0, "unreachable", "The service does not answer. Is `holdfast serve` still running?");
  }
  const date = Date.parse(response.headers.get("date") ?? "");
  // The header tells whole seconds; what is less than two is the same clock.
  if (date) clockOffset = Math.abs(date - Date.now()) > 2000 ? date - Date.now() : 0;
  const told = await response.json().catch(() => null);
  if (response.ok) return told;
  throw new Refused(response.status, told?.error?.code ?? "failed", told?.error?.message ?? `status ${response.status}`);
}

export const get = (path, query = {}) => {
  const said = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return asked("GET", said.length ? `${path}?${new URLSearchParams(said)}` : path);
};

export const post = (path, options) => asked("POST", path, options);

export const put = (path, body) => asked("PUT", path, { body });

export const remove = (path) => asked("DELETE", path);

export const signIn = (key) => post("/api/sign_in", { headers: { authorization: `Bearer ${key}` } });

export const part = encodeURIComponent;
