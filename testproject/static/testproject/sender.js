// Sends requests and messages at the pace the page asks for, and counts the answers. It runs in a worker,
// because a browser slows the timers of a tab that is not in front, and the load should stay what it was.

const REPORT = 250; // milliseconds between two reports to the page: one tick of the chart
const STEP = 20; // milliseconds between two looks at what is due
const POLL = 500; // milliseconds between two looks at the budgets
const MOST_WAITING = 60; // answers outstanding in a lane before sends are skipped, when the server cannot keep up
const PATIENCE = 1000; // milliseconds until a message counts as one that gets no answer
const REOPEN = 1000; // milliseconds until another socket is tried for messages, after one was refused or closed

let urls = {};
let csrf = "";
let workers = {};
let notes = [];
let sockets = [];
let asked = 0;
let reopenAt = 0;
let owed = 0; // messages that wait for a socket to open

class Lane {
  constructor(send) {
    this.send = send;
    this.pace = 0;
    this.due = 0;
    this.waiting = 0;
    this.counts = fresh();
  }

  /** Send what has come due in this many milliseconds. */
  step(elapsed) {
    this.due = this.pace ? this.due + (this.pace * elapsed) / 1000 : 0;
    while (this.due >= 1) {
      this.due -= 1;
      if (this.waiting < MOST_WAITING) this.send(this);
    }
  }

  answered(verdict) {
    this.waiting = Math.max(0, this.waiting - 1);
    this.counts[verdict] += 1;
  }

  report() {
    const counts = this.counts;
    this.counts = fresh();
    return counts;
  }
}

const lanes = {
  http: new Lane((lane) => request(lane, `${urls.search}?q=ap`)),
  order: new Lane((lane) => request(lane, urls.orders, { method: "POST", headers: { "X-CSRFToken": csrf } })),
  message: new Lane(message),
};

function fresh() {
  return { allowed: 0, refused: 0, failed: 0 };
}

async function request(lane, url, options) {
  lane.waiting += 1;
  try {
    const response = await fetch(url, { ...options, cache: "no-store" });
    seen(response.headers.get("X-Worker"));
    lane.answered(response.ok ? "allowed" : response.status === 429 ? "refused" : "failed");
  } catch {
    lane.answered("failed");
  }
}

/** Ask what is left of each budget; asking costs nothing. */
async function ask() {
  try {
    const response = await fetch(urls.budgets, { cache: "no-store" });
    if (!response.ok) throw new Error(`it answered ${response.status}`);
    postMessage({ type: "budgets", budgets: await response.json() });
  } catch (error) {
    postMessage({ type: "trouble", text: `No word from the server (${error.message}); trying again.` });
  }
}

async function poll() {
  await ask();
  setTimeout(poll, POLL);
}

function message(lane) {
  const open = sockets.filter((socket) => socket.greeted);
  if (!open.length) {
    owed = Math.min(owed + 1, MOST_WAITING);
    if (!sockets.length && Date.now() >= reopenAt) openSocket();
    return;
  }
  lane.waiting += 1;
  asked += 1;
  const socket = open[asked % open.length];
  socket.outstanding.push({ id: asked, at: performance.now() });
  socket.send(JSON.stringify({ id: asked, text: "hello" }));
}

function openSocket() {
  const socket = new WebSocket(urls.chat);
  Object.assign(socket, { greeted: false, outstanding: [], refusing: false, worker: null });
  socket.onmessage = ({ data }) => hear(socket, JSON.parse(data));
  socket.onclose = ({ code }) => closed(socket, code);
  sockets.push(socket);
}

function hear(socket, frame) {
  if (frame.type === "hello") {
    Object.assign(socket, { greeted: true, worker: frame.worker });
    seen(frame.worker);
    listSockets();
    for (; owed; owed -= 1) message(lanes.message);
  } else if (frame.type === "echo") {
    echoed(socket, frame.id);
  } else if (frame.type !== "heard" && frame.type !== "unheard") {
    if (socket.greeted) refused(socket);
    else socket.told = frame;
  }
}

// Messages are decided in their order, and each refused one has an error frame, up to five at once. Others are refused
// silently. So an echo says of all before it that they were refused, and so does silence after an error frame.

function echoed(socket, id) {
  settle(socket, socket.outstanding.filter((message) => message.id < id).length, "refused");
  if (socket.outstanding[0]?.id === id) settle(socket, 1, "allowed");
  socket.refusing = false;
}

function refused(socket) {
  settle(socket, 1, "refused");
  socket.refusing = true;
}

function giveUp(socket, now) {
  const late = socket.outstanding.filter((message) => now - message.at > PATIENCE).length;
  settle(socket, late, socket.refusing ? "refused" : "failed");
}

/** Count this many messages of a socket, the oldest ones. */
function settle(socket, count, verdict) {
  for (const _ of socket.outstanding.splice(0, count)) lanes.message.answered(verdict);
}

function closed(socket, code) {
  sockets = sockets.filter((other) => other !== socket);
  settle(socket, socket.outstanding.length, socket.refusing ? "refused" : "failed");
  if (code !== 1000) {
    reopenAt = Date.now() + REOPEN;
    owed = 0;
    notes.push({ greeted: socket.greeted, code, told: socket.told ?? null });
  }
  listSockets();
}

function listSockets() {
  postMessage({ type: "sockets", open: sockets.filter((socket) => socket.greeted).map((socket) => socket.worker), notes });
  notes = [];
  ask();
}

function seen(worker) {
  if (worker) workers[worker] = (workers[worker] ?? 0) + 1;
}

const orders = {
  start(order) {
    ({ urls, csrf } = order);
    poll();
  },
  csrf: (order) => ({ csrf } = order),
  pace: ({ lane, pace }) => (lanes[lane].pace = pace),
  burst({ lane, count }) {
    for (let sent = 0; sent < count; sent += 1) lanes[lane].send(lanes[lane]);
  },
  open: openSocket,
  close: () => sockets.at(-1)?.close(1000),
  "close-all": () => sockets.forEach((socket) => socket.close(1000)),
};

onmessage = ({ data: order }) => orders[order.type](order);

let last = performance.now();
setInterval(() => {
  const now = performance.now();
  for (const lane of Object.values(lanes)) lane.step(Math.min(now - last, 1000));
  for (const socket of sockets) giveUp(socket, now);
  last = now;
}, STEP);

setInterval(() => {
  const counts = Object.fromEntries(Object.entries(lanes).map(([name, lane]) => [name, lane.report()]));
  postMessage({ type: "counts", counts, workers });
}, REPORT);
