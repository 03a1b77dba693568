// Live feed client: reports sessions with new events and the connection state, and reconnects by itself.

import { get } from "./api.js";

const RETRY_MS = 2000;
const GATHER_MS = 350;

const KINDS = [
  "session.started", "session.ended", "epoch.opened", "turn.started", "turn.completed", "turn.cancelled",
  "llm.call_completed", "llm.call_failed", "model.switched", "cache.explicit_cache", "cache.pinged", "cache.controls_applied",
  "skill.loaded", "skill.used", "delegation.completed", "dropped",
];

/**
 * Calls `onEvents` at most about three times a second with the sessions that have new events; null means any.
 * `onRefused` gets the error once the key is not accepted any more.
 */
export function listen(onEvents, onStatus, onRefused) {
  let source;
  let timer;
  let missed = false;
  let retry;
  const sessions = new Set();

  const gather = (event) => {
    sessions.add(event.type === "dropped" ? null : JSON.parse(event.data).session_id);
    timer ??= setTimeout(() => {
      timer = undefined;
      const batch = new Set(sessions);
      sessions.clear();
      onEvents(batch);
    }, GATHER_MS);
  };

  const connect = () => {
    clearTimeout(retry);
    source = new EventSource("/api/cache/stream");
    source.onopen = () => {
      onStatus("live");
      // A new EventSource does not repeat the events missed while disconnected, so refresh everything.
      if (missed) onEvents(new Set([null]));
      missed = false;
    };
    source.onerror = () => {
      disconnect();
      onStatus("lost");
      retry = setTimeout(reconnect, RETRY_MS);
    };
    KINDS.forEach((kind) => source.addEventListener(kind, gather));
  };

  /** An EventSource does not say why it was refused. */
  const reconnect = async () => {
    const own = retry;
    try {
      await get("/api/visitor");
      if (retry === own && !source) connect();
    } catch (error) {
      if (retry !== own || source) return;
      if (error.status === 401) onRefused(error);
      else retry = setTimeout(reconnect, RETRY_MS);
    }
  };

  const disconnect = () => {
    missed = true;
    clearTimeout(retry);
    retry = undefined;
    source?.close();
    source = undefined;
  };

  // Browsers allow six HTTP/1.1 connections per host for all tabs, so a hidden tab must not hold one.
  const onVisibility = () => {
    if (document.hidden) disconnect();
    else if (!source) connect();
  };

  onVisibility();
  document.addEventListener("visibilitychange", onVisibility);
  window.addEventListener("pagehide", disconnect);
  window.addEventListener("pageshow", onVisibility);
  return () => {
    document.removeEventListener("visibilitychange", onVisibility);
    window.removeEventListener("pagehide", disconnect);
    window.removeEventListener("pageshow", onVisibility);
    clearTimeout(timer);
    disconnect();
  };
}
