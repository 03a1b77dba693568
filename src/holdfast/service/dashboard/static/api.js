// HTTP client for the service. All paths are same-origin; an error response throws ApiError.

export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export const UNREACHABLE = "The service does not respond. Is `holdfast serve` still running?";

let clockOffset = 0;

/** The service's time in milliseconds; the browser's clock may differ. */
export const now = () => Date.now() + clockOffset;

const SIMULATED = "holdfast simulated";
let includesSimulated = false;
try {
  includesSimulated = localStorage.getItem(SIMULATED) === "include";
} catch {
  // Storage is blocked: the choice lasts until the page is closed.
}

/** Whether every view counts simulated sessions too. */
export const isSimulatedIncluded = () => includesSimulated;

export function includeSimulated(included) {
  includesSimulated = included;
  try {
    localStorage.setItem(SIMULATED, included ? "include" : "");
  } catch {
    // As above.
  }
}

async function request(method, path, { body, headers } = {}) {
  let response;
  try {
    response = await fetch(path, {
      method,
      headers: { ...(body === undefined ? {} : { "content-type": "application/json" }), ...(includesSimulated ? { "holdfast-simulated": "include" } : {}), ...headers },
      body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "same-origin",
    });
  } catch {
    throw new ApiError(0, "unreachable", UNREACHABLE);
  }
  const date = Date.parse(response.headers.get("date") ?? "");
  // The Date header has whole seconds, so a difference below two seconds means equal clocks.
  if (date) clockOffset = Math.abs(date - Date.now()) > 2000 ? date - Date.now() : 0;
  const reply = await response.json().catch(() => null);
  if (response.ok) return reply;
  throw new ApiError(response.status, reply?.error?.code ?? "failed", reply?.error?.message ?? `status ${response.status}`);
}

export const get = (path, query = {}) => {
  const fields = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return request("GET", fields.length ? `${path}?${new URLSearchParams(fields)}` : path);
};

export async function getText(path) {
  const response = await fetch(path).catch(() => null);
  if (!response) throw new ApiError(0, "unreachable", UNREACHABLE);
  if (!response.ok) throw new ApiError(response.status, "failed", `status ${response.status}`);
  return response.text();
}

export const post = (path, options) => request("POST", path, options);

export const put = (path, body) => request("PUT", path, { body });

export const remove = (path) => request("DELETE", path);

export const signIn = (key) => post("/api/sign_in", { headers: { authorization: `Bearer ${key}` } });

export const part = encodeURIComponent;
