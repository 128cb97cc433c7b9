// A WebSocket that keeps to what a throttled server says: it waits, paces, queues, and comes back by itself.
//
//   import { ThrottledSocket } from "/static/django_throttle/throttled-socket.js";
//   const socket = new ThrottledSocket("/ws/chat/");
//   socket.addEventListener("message", (event) => show(event.data));
//   socket.addEventListener("throttled", (event) => say(`slow down for ${event.detail.seconds} s`));
//   socket.send("hello"); // at once, or as soon as the server allows
//
// Events, each with a `detail`:
//   open {attempt}              message (as a WebSocket's own: `data`)   close {code, reason, final}
//   throttled {code, rule, limit, remaining, window, seconds, message}   the server refused something; sending rests
//   waiting {seconds, attempt}  when the next connection is tried        resumed {}  sending goes on
//   dropped {data, reason}      a message that will never be sent: "full" (the queue), "old" or "closed"
//   lost {...}                  the server says that messages to us were left out; fetch what you need anew
//
// Times in options are seconds.

const CODES = { rateLimited: 4429, connectionLimit: 4430, unavailable: 4503, idle: 4408 };
const DEFAULTS = {
  protocols: [],
  firstWait: 0.5, // before the first new attempt; doubles with each
  longestWait: 60,
  jitter: 0.25, // share of a wait that the server asked for, added at random, so that a crowd spreads out
  stable: 5, // open for this long is a success: waits begin anew
  maxQueue: 1000, // messages that wait; the oldest make room
  maxAge: Infinity, // a message that waited for longer is not sent any more
  maxAttempts: Infinity,
  // Codes after which coming back would not help: told in "close" with final=true.
  finalCodes: [1000, 1002, 1003, 1007, 1008, 1009, 4400, 4401, 4403, 4404, 4410],
  finalErrors: ["evicted", "blocked"], // of the error frame: coming back would evict another window, and so on
  random: Math.random,
  parse: parseError,
};

export class ThrottledSocket extends EventTarget {
  #options;
  #url;
  #socket = null;
  #queue = []; // {data, since}
  #attempt = 0;
  #closed = false; // by the page, or for good
  #restUntil = 0; // nothing is sent before
  #interval = 0; // milliseconds between two messages, while we pace
  #pacedUntil = 0;
  #nextTurn = 0;
  #comeBack = 0; // milliseconds that the server asked to wait before a new connection
  #lastError = null;
  #timers = { send: 0, rest: 0, open: 0, stable: 0 };

  constructor(url, options = {}) {
    super();
    this.#url = new URL(url, globalThis.location?.href);
    this.#url.protocol = this.#url.protocol.replace("http", "ws");
    this.#options = { ...DEFAULTS, ...options };
    this.#open();
  }

  /** Send now, or queue until the server allows. True when it was sent at once; throws TypeError for no data. */
  send(data) {
    if (data === undefined || data === null) throw new TypeError("send needs text or binary data");
    if (this.#closed) {
      this.#tell("dropped", { data, reason: "closed" });
      return false;
    }
    this.#queue.push({ data, since: now() });
    if (this.#queue.length > this.#options.maxQueue) {
      this.#tell("dropped", { data: this.#queue.shift().data, reason: "full" });
    }
    this.#flush();
    return this.#queue.length === 0;
  }

  /** Close for good; what is queued is dropped, and told. */
  close(code = 1000, reason = "") {
    if (this.#closed) return;
    this.#end();
    if (this.#socket && this.#socket.readyState <= WebSocket.OPEN) this.#socket.close(code, reason);
    else this.#tell("close", { code, reason, final: true });
  }

  /** Messages that wait. */
  get queued() {
    return this.#queue.length;
  }

  /** As a WebSocket's: CONNECTING also while waiting to come back. */
  get readyState() {
    if (this.#closed) return this.#socket?.readyState === WebSocket.CLOSING ? WebSocket.CLOSING : WebSocket.CLOSED;
    return this.#socket?.readyState === WebSocket.OPEN ? WebSocket.OPEN : WebSocket.CONNECTING;
  }

  /** Seconds until the next message may be sent; 0 when it may now. */
  get wait() {
    const paced = now() < this.#pacedUntil ? this.#nextTurn : 0;
    return Math.max(0, Math.max(this.#restUntil, paced) - now()) / 1000;
  }

  #open() {
    const socket = new WebSocket(this.#url, this.#options.protocols);
    this.#socket = socket;
    this.#comeBack = 0;
    this.#lastError = null;
    socket.binaryType = this.#options.binaryType ?? "blob";
    socket.addEventListener("open", () => this.#opened());
    socket.addEventListener("message", (event) => this.#received(event));
    socket.addEventListener("close", (event) => this.#left(socket, event));
  }

  #opened() {
    this.#tell("open", { attempt: this.#attempt });
    this.#timers.stable = setTimeout(() => (this.#attempt = 0), this.#options.stable * 1000);
    this.#flush();
  }

  #received(event) {
    const said = this.#options.parse(event.data);
    if (said?.type === "error") this.#refused(said);
    else if (said?.type === "continuity_lost") this.#tell("lost", said);
    else this.dispatchEvent(new MessageEvent("message", { data: event.data, origin: event.origin }));
  }

  /** Rest for as long as the server says, then keep the pace that its rule allows until a window has gone well. */
  #refused(error) {
    this.#lastError = error;
    const wait = this.#spread(error.retry_after ?? this.#options.longestWait);
    this.#comeBack = Math.max(this.#comeBack, wait);
    if (error.code === "rate_limited") {
      this.#rest(wait);
      if (error.limit > 0 && error.window > 0) {
        this.#interval = (error.window * 1000) / error.limit;
        this.#pacedUntil = this.#restUntil + 2000 * error.window;
      }
    }
    this.#tell("throttled", { ...error, seconds: wait / 1000, message: error.detail ?? "" });
    this.#flush();
  }

  #rest(wait) {
    this.#restUntil = Math.max(this.#restUntil, now() + wait);
    clearTimeout(this.#timers.rest);
    this.#timers.rest = setTimeout(() => {
      this.#restUntil = 0;
      this.#tell("resumed", {});
      this.#flush();
    }, this.#restUntil - now());
  }

  #flush() {
    clearTimeout(this.#timers.send);
    while (this.#queue.length && this.readyState === WebSocket.OPEN) {
      const moment = now();
      if (this.#restUntil) return; // its timer comes back here
      if (moment < this.#pacedUntil && moment < this.#nextTurn) {
        this.#timers.send = setTimeout(() => this.#flush(), this.#nextTurn - moment);
        return;
      }
      const { data, since } = this.#queue.shift();
      if (moment - since > this.#options.maxAge * 1000) {
        this.#tell("dropped", { data, reason: "old" });
        continue;
      }
      this.#socket.send(data);
      this.#nextTurn = moment + this.#interval;
    }
  }

  #left(socket, { code, reason, wasClean }) {
    if (socket !== this.#socket) return;
    clearTimeout(this.#timers.stable);
    clearTimeout(this.#timers.send);
    const final = this.#closed || this.#isFinal(code) || this.#attempt >= this.#options.maxAttempts;
    if (final) this.#end();
    this.#tell("close", { code, reason, wasClean, final, error: this.#lastError });
    if (!final) this.#wait(code, reason);
  }

  #isFinal(code) {
    return this.#options.finalCodes.includes(code) || this.#options.finalErrors.includes(this.#lastError?.code);
  }

  #wait(code, reason) {
    this.#attempt += 1;
    const wait = Math.max(this.#comeBack, this.#asked(code, reason), this.#backOff());
    this.#tell("waiting", { seconds: wait / 1000, attempt: this.#attempt });
    this.#timers.open = setTimeout(() => this.#open(), wait);
  }

  /** Half of the wait is certain, half at random: a crowd that was cut off together comes back apart. */
  #backOff() {
    const { firstWait, longestWait, random } = this.#options;
    const most = Math.min(longestWait, firstWait * 2 ** Math.min(this.#attempt - 1, 30)) * 1000;
    return most / 2 + (most / 2) * random();
  }

  /** What the reason of a close says, as not every refusal comes with a frame. */
  #asked(code, reason) {
    const found = Object.values(CODES).includes(code) && /retry_after=(\d+(?:\.\d+)?)/.exec(reason);
    return found ? this.#spread(Number(found[1])) : 0;
  }

  #spread(seconds) {
    return seconds * 1000 * (1 + this.#options.jitter * this.#options.random());
  }

  #end() {
    this.#closed = true;
    for (const timer of Object.values(this.#timers)) clearTimeout(timer);
    for (const { data } of this.#queue.splice(0)) this.#tell("dropped", { data, reason: "closed" });
  }

  #tell(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}

/** The frame as an object when it is one of the limiter's own; null for the application's. */
export function parseError(data) {
  if (typeof data !== "string" || !/^\{"type": ?"(error|continuity_lost)"/.test(data)) return null;
  try {
    const frame = JSON.parse(data);
    return typeof frame.code === "string" || frame.type === "continuity_lost" ? frame : null;
  } catch {
    return null;
  }
}

function now() {
  return performance.now();
}
