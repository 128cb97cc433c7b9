// A WebSocket that keeps to what a throttled server says: it waits, paces, queues, and comes back by itself.
//
//   import { ThrottledSocket } from "/static/django_throttle/throttled-socket.js";
//   const socket = new ThrottledSocket("/ws/chat/");
//   socket.addEventListener("message", (event) => show(event.data));
//   socket.addEventListener("throttled", (event) => say(event.detail.message));
//   socket.send(JSON.stringify({ text: "hello" })); // at once, or as soon as the server allows
//
// Events, each with a `detail`:
//   open {attempt}              message (as a WebSocket's own: `data`)   close {code, reason, final}
//   throttled {code, rule, limit, remaining, window, seconds, message}   the server refused something; sending rests
//   waiting {seconds, attempt}  when the next connection is tried        resumed {}  sending goes on
//   dropped {data, reason}      a message that will never be sent: "full" (the queue), "old" or "closed"
//   lost {...}                  the server says that messages to us were left out; fetch what you need anew
//
// One "throttled" may stand for many messages that the server dropped; which of those sent they were, nobody knows.
// After close() nothing is told but "dropped", and "close" once. Times in options are seconds.

const DEFAULTS = {
  protocols: [],
  binaryType: "blob",
  pace: null, // {limit, window} where it is known: so many messages in so many seconds, from the first one on
  firstWait: 0.5, // before the first new attempt; doubles with each
  longestWait: 60,
  jitter: 0.25, // share of a wait that the server asked for, added at random (longestWait at most): a crowd spreads out
  stable: 5, // open for this long is a success: waits begin anew
  maxQueue: 1000, // messages that wait; the oldest make room
  maxAge: Infinity, // a message that waited for longer is not sent any more
  maxAttempts: Infinity,
  // Codes after which coming back would not help: told in "close" with final=true.
  finalCodes: [1000, 1002, 1003, 1007, 1008, 1009, 4400, 4401, 4403, 4404, 4410],
  finalErrors: ["evicted", "blocked", "closed"], // of the error frame: coming back would evict another window
  random: Math.random,
  parse: parseError, // for a site with payloads of its own: makes of a frame what parseError does
};
const OF_MESSAGES = ["rate_limited", "limiter_unavailable", "blocked"];
const CODES = [...OF_MESSAGES, "connection_limit", "evicted", "closed", "idle", "too_old", "not_accepted"];
// In milliseconds:
const LONGEST_TIMER = 2 ** 31 - 1; // browsers take what is longer for nothing
const HOLD = 50; // after opening: by then a frame has said whether the handshake was refused, which swallows messages
const MARGIN = 100; // for a message that is quicker on its way than those before
const GENTLE = { atOnce: 5, slope: 100 }; // a few at once, then faster and faster: a hundred in the first second

const now = () => performance.now();

export class ThrottledSocket extends EventTarget {
  #options;
  #url;
  #socket;
  #timers = {};
  #queue = []; // {data, since, sent}
  #attempt = 0;
  #closed = false; // by the page, or for good
  #error = null; // what the server said last on this connection, and until when it holds
  #errorUntil = 0;
  #sent = 0; // messages on this connection
  #times = []; // when the last messages were sent, where there is `pace`
  #holdUntil = 0; // nothing is sent before
  #restUntil = 0; // nor before, as the server said
  #gentle = false; // a queue goes out whose limits nobody knows
  #pacedUntil = 0; // until then messages go `interval` apart; it is over after `quiet` in which none had to wait
  #interval = 0;
  #nextTurn = 0;
  #quiet = 0;

  constructor(url, options = {}) {
    super();
    this.#url = new URL(url, globalThis.location?.href);
    this.#url.protocol = this.#url.protocol.replace("http", "ws");
    this.#options = { ...DEFAULTS, ...checked(options) };
    this.#open();
  }

  /** Send now, or queue until the server allows. True when it was sent at once; throws TypeError for no data. */
  send(data) {
    if (data === undefined || data === null) throw new TypeError("send needs text or binary data");
    if (this.#closed) return this.#drop({ data }, "closed");
    const message = { data, since: now(), sent: false };
    this.#queue.push(message);
    this.#flush();
    if (this.#queue.length > this.#options.maxQueue) this.#drop(this.#queue.shift(), "full");
    return message.sent;
  }

  /** Close for good; what is queued is dropped, and told. Throws, and closes nothing, for a code a page may not use. */
  close(code = 1000, reason = "") {
    if (this.#closed) return;
    this.#socket.close(code, reason); // checks both in any state
    this.#end();
    if (this.#socket.readyState === WebSocket.CLOSED) this.#tell("close", { code, reason, final: true });
  }

  /** Messages that wait. */
  get queued() {
    return this.#queue.length;
  }

  /** As a WebSocket's: CONNECTING also while waiting to come back. */
  get readyState() {
    if (this.#closed) return this.#socket.readyState === WebSocket.CLOSED ? WebSocket.CLOSED : WebSocket.CLOSING;
    return this.#socket.readyState === WebSocket.OPEN ? WebSocket.OPEN : WebSocket.CONNECTING;
  }

  /** Seconds until the next message may be sent; 0 when it may now. */
  get wait() {
    return Math.max(0, this.#turn() - now()) / 1000;
  }

  #open() {
    const socket = (this.#socket = new WebSocket(this.#url, this.#options.protocols));
    this.#error = null;
    this.#sent = 0;
    socket.binaryType = this.#options.binaryType;
    socket.addEventListener("open", () => this.#opened());
    socket.addEventListener("message", (event) => this.#received(event));
    socket.addEventListener("close", (event) => this.#left(event));
  }

  #opened() {
    this.#at("stable", now() + this.#options.stable * 1000, () => (this.#attempt = 0));
    this.#holdUntil = now() + HOLD;
    this.#gentle = !this.#options.pace;
    this.#tell("open", { attempt: this.#attempt });
    this.#flush();
  }

  #received(event) {
    if (this.#closed) return;
    const said = this.#options.parse(event.data);
    if (said?.type === "error") this.#refused(said);
    else if (said?.type === "continuity_lost") this.#tell("lost", said);
    else this.dispatchEvent(new MessageEvent("message", { data: event.data, origin: event.origin }));
  }

  #refused(error) {
    const never = error.retry_after === null; // for a message too large for ever, while others pass; a block may end
    const wait = never && error.code !== "blocked" ? 0 : this.#spread(error.retry_after);
    this.#error = error;
    this.#errorUntil = never ? Infinity : now() + wait;
    // Before anything was sent it is about the handshake.
    if (this.#sent && wait > 0 && OF_MESSAGES.includes(error.code)) this.#rest(wait, error);
    this.#tell("throttled", { ...error, seconds: wait / 1000, message: error.detail ?? "" });
    this.#flush();
  }

  /** Rest for as long as the server says, then keep the pace of its rule for as long as messages have to wait. */
  #rest(wait, { code, limit, window }) {
    this.#restUntil = Math.max(this.#restUntil, now() + wait);
    this.#nextTurn = this.#restUntil;
    const interval = (window * 1000) / limit;
    if (code === "rate_limited" && interval > 0 && interval < Infinity) {
      this.#interval = Math.max(interval, now() < this.#pacedUntil ? this.#interval : 0);
      this.#quiet = Math.min(2 * window, this.#options.longestWait) * 1000;
      this.#pacedUntil = this.#restUntil + this.#quiet;
      this.#gentle = false;
    }
    this.#at("rest", this.#restUntil, () => {
      this.#tell("resumed", {});
      this.#flush();
    });
  }

  #flush() {
    this.#expire();
    while (this.#queue.length && this.readyState === WebSocket.OPEN) {
      if (now() < this.#restUntil) return; // its timer comes back here
      const turn = this.#turn();
      if (now() < turn) {
        if (now() < this.#pacedUntil) this.#pacedUntil = Math.max(this.#pacedUntil, turn + this.#quiet);
        return this.#at("send", turn, () => this.#flush());
      }
      this.#pass(this.#queue.shift());
    }
    if (this.#sent) this.#gentle = false;
  }

  #pass(message) {
    this.#socket.send(message.data);
    message.sent = true;
    this.#sent += 1;
    this.#nextTurn = now() + this.#interval;
    if (this.#options.pace && this.#times.push(now()) > this.#options.pace.limit) this.#times.shift();
  }

  /** The moment when the next message may go. */
  #turn() {
    const { pace } = this.#options;
    const room = pace && this.#times.length >= pace.limit ? this.#times[0] + pace.window * 1000 + MARGIN : 0;
    const more = this.#gentle ? Math.max(0, this.#sent + 1 - GENTLE.atOnce) : 0;
    const gentle = this.#holdUntil + GENTLE.slope * Math.sqrt(more);
    return Math.max(this.#restUntil, room, gentle, now() < this.#pacedUntil ? this.#nextTurn : 0);
  }

  /** What has waited for too long goes when it is too old, not when its turn has come. */
  #expire() {
    const age = Math.max(1, this.#options.maxAge * 1000);
    while (this.#queue.length && now() > this.#queue[0].since + age) this.#drop(this.#queue.shift(), "old");
    if (this.#queue.length && age < Infinity) this.#at("age", this.#queue[0].since + age + 1, () => this.#expire());
  }

  #left({ code, reason, wasClean }) {
    clearTimeout(this.#timers.stable);
    const { finalCodes, finalErrors, maxAttempts } = this.#options;
    const told = finalErrors.includes(this.#error?.code) && now() < this.#errorUntil;
    const final = this.#closed || told || finalCodes.includes(code) || this.#attempt >= maxAttempts;
    const wait = final ? this.#end() : this.#comeBack(code, reason);
    this.#tell("close", { code, reason, wasClean, final, error: this.#error });
    if (!this.#closed) this.#tell("waiting", { seconds: wait / 1000, attempt: this.#attempt });
  }

  #comeBack(code, reason) {
    // Who may send nothing may still listen: that counts only where it is what the server closed for.
    const counts = this.#error && (code >= 3000 || !this.#sent || this.#error.code !== "rate_limited");
    const named = counts && this.#errorUntil < Infinity ? this.#errorUntil - now() : 0;
    const said = /retry_after=(\d+(?:\.\d+)?)/.exec(reason); // as not every refusal comes with a frame
    // Half of the wait is certain, half at random: a crowd that was cut off together comes back apart.
    const { firstWait, longestWait, random } = this.#options;
    const most = Math.min(longestWait, firstWait * 2 ** Math.min(this.#attempt++, 30)) * 1000;
    const wait = Math.max(named, said ? this.#spread(Number(said[1])) : 0, (most / 2) * (1 + random()));
    this.#at("open", now() + wait, () => this.#open());
    return wait;
  }

  /** Milliseconds, and some at random; what makes no sense is the longest wait. */
  #spread(said) {
    const { jitter, longestWait, random } = this.#options;
    const seconds = Number.isFinite(said) && said >= 0 ? said : longestWait;
    return (seconds + Math.min(seconds * jitter, longestWait) * random()) * 1000;
  }

  /** Do something at a moment, however far away; no timer is set but here. */
  #at(name, moment, act) {
    clearTimeout(this.#timers[name]);
    const look = () => (now() < moment ? this.#at(name, moment, act) : act());
    this.#timers[name] = setTimeout(look, Math.min(Math.ceil(Math.max(0, moment - now())), LONGEST_TIMER));
  }

  #end() {
    this.#closed = true;
    for (const timer of Object.values(this.#timers)) clearTimeout(timer);
    for (const message of this.#queue.splice(0)) this.#drop(message, "closed");
  }

  #drop({ data }, reason) {
    this.#tell("dropped", { data, reason });
    return false;
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
    const [known, keys] =
      frame.type === "error" ? [CODES.includes(frame.code), ["rule", "retry_after"]] : [true, ["lost", "since"]];
    return known && keys.every((key) => key in frame) ? frame : null;
  } catch {
    return null; // no JSON
  }
}

/** The options; throws TypeError for a name nobody knows, or no number: we should come back at once, and again. */
function checked(options) {
  for (const [name, value] of Object.entries(options)) {
    if (!Object.hasOwn(DEFAULTS, name)) throw new TypeError(`there is no option ${name}`);
    const [usual, kind] = [DEFAULTS[name], typeof DEFAULTS[name]];
    if (kind === "number" && !(typeof value === "number" && value >= 0))
      throw new TypeError(`${name} must be a number from 0 on`);
    if (kind === "function" && typeof value !== "function") throw new TypeError(`${name} is a function`);
    if (Array.isArray(usual) && !(Array.isArray(value) || (name === "protocols" && typeof value === "string")))
      throw new TypeError(`${name} is a list`);
  }
  const { pace } = options;
  if (pace && !(pace.limit >= 1 && pace.window > 0)) throw new TypeError("pace is {limit, window}");
  return options;
}
