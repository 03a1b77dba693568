// The feed: tells that something happened, says when the line is lost, and comes back by itself.

const RETRY_MS = 2000;
const GATHER_MS = 350;

const KINDS = [
  "session.started", "session.ended", "epoch.opened", "turn.started", "turn.completed", "turn.cancelled",
  "llm.call_completed", "llm.call_failed", "model.switched", "cache.kept", "cache.pinged", "cache.controlled",
  "skill.loaded", "delegation.completed", "dropped",
];

/** Calls `heard` at most about three times a second with the sessions that something happened in; null means any. */
export function listen(heard, status) {
  let source;
  let timer;
  let missed = false;
  let retry;
  const sessions = new Set();

  const gather = (event) => {
    sessions.add(event.type === "dropped" ? null : JSON.parse(event.data).session_id);
    timer ??= setTimeout(() => {
      timer = undefined;
      const some = new Set(sessions);
      sessions.clear();
      heard(some);
    }, GATHER_MS);
  };

  const open = () => {
    source = new EventSource("/api/cache/stream");
    source.onopen = () => {
      status("live");
      // What happened while nobody listened is not told again by a new source.
      if (missed) heard(new Set([null]));
      missed = false;
    };
    source.onerror = () => {
      leave();
      status("lost");
      retry = setTimeout(open, RETRY_MS);
    };
    KINDS.forEach((kind) => source.addEventListener(kind, gather));
  };

  const leave = () => {
    missed = true;
    clearTimeout(retry);
    source?.close();
    source = undefined;
  };

  // A browser keeps six connections to a service for all its tabs: one that nobody sees must not hold one.
  const follow = () => {
    if (document.hidden) leave();
    else if (!source) open();
  };

  follow();
  document.addEventListener("visibilitychange", follow);
  window.addEventListener("pagehide", leave);
  window.addEventListener("pageshow", follow);
  return () => {
    document.removeEventListener("visibilitychange", follow);
    window.removeEventListener("pagehide", leave);
    window.removeEventListener("pageshow", follow);
    clearTimeout(timer);
    leave();
  };
}
