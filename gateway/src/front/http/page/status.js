"use strict";
// Building blocks of the page, and the view of the service's state.
const SVG = "http://www.w3.org/2000/svg";
const $ = id => document.getElementById(id);
const state = { report: null, failed: false, timer: 0, cursor: null, shown: new Map(), open: new Set() };

// Every figure and every word of a model becomes a text node.
function el(tag, name, ...children) {
  const node = document.createElement(tag);
  if (name) node.className = name;
  node.append(...children.filter(child => child !== null && child !== undefined));
  return node;
}
function draw(tag, attributes, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
// Replaces the children only if what they show is another: selected text stays selected.
function show(id, shown, build) {
  const key = JSON.stringify(shown);
  if (state.shown.get(id) === key) return;
  state.shown.set(id, key);
  $(id).replaceChildren(...build());
}
// A reason: its first line, and the rest, which is the end of a log, on demand. What was opened stays open.
function reason(id, text) {
  const [first, ...rest] = text.trimEnd().split("\n");
  if (rest.length === 0) return [first];
  const more = el("details", "", el("summary", "", "Last log lines"), el("pre", "", rest.join("\n")));
  more.open = state.open.has(id);
  more.addEventListener("toggle", () => more.open ? state.open.add(id) : state.open.delete(id));
  return [first, more];
}
const count = new Intl.NumberFormat("en");
const decimal = digits => new Intl.NumberFormat("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const tenth = decimal(1), hundredth = decimal(2);
const speed = value => value >= 100 ? count.format(Math.round(value)) : tenth.format(value);
const percent = (part, whole) => whole > 0 ? `${Math.round(100 * part / whole)} %` : "0 %";
const words = text => text.replaceAll("_", " ");
function bytes(value) {
  let unit = 0;
  while (value >= 1024 && unit < 4) { value /= 1024; unit++; }
  return `${unit === 0 ? value : tenth.format(value)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
}
function age(seconds) {
  const s = Math.floor(seconds), m = Math.floor(s / 60), h = Math.floor(m / 60), d = Math.floor(h / 24);
  if (m < 1) return `${s} s`;
  if (h < 1) return `${m} min`;
  return d < 1 ? `${h} h ${m % 60} min` : `${d} d ${h % 24} h`;
}
const clock = when => when.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });

// States have a shape and a word beside their colour.
const STATES = {
  ready: ["good", "ready"], serving: ["good", "ready"], up: ["good", "ready"],
  starting: ["warn", "half"], loading: ["warn", "half"], greeting: ["warn", "half"], draining: ["warn", "half"],
  suspect: ["warn", "triangle"], backing_off: ["bad", "triangle"], unknown: ["warn", "triangle"], lost: ["bad", "triangle"],
  failed: ["bad", "cross"], refused: ["bad", "cross"], ejected: ["bad", "cross"], not_serving: ["bad", "cross"],
};
function stateMark(word, text) {
  const [colour, shape] = STATES[word] || ["idle", "hollow"];
  const icon = draw("svg", { "aria-hidden": "true" }, draw("use", { href: `#${shape}` }));
  return el("span", `state ${colour}`, icon, el("span", "", text || words(word)));
}
function bar(parts) {
  const whole = parts.reduce((sum, [, value]) => sum + value, 0);
  const node = el("div", "bar");
  node.setAttribute("aria-hidden", "true");
  for (const [name, value] of parts) {
    if (value <= 0) continue;
    const part = el("i", name);
    part.style.flex = `${value / whole} 0 0`;
    node.append(part);
  }
  return node;
}
function list(rows) {
  const node = el("dl", "");
  for (const [name, label, value] of rows) {
    node.append(el("dt", "", name === null ? null : el("i", name), label), el("dd", "", value));
  }
  return node;
}

// Sections.
function renderHead(report) {
  const why = report.serving.reason;
  const word = state.failed ? "unknown" : report.serving.status === "serving" ? "serving"
    : why === "TARGET_LOADING" ? "loading" : why === "DRAINING" ? "draining" : "not_serving";
  show("state", word, () => {
    const mark = stateMark(word, { serving: "Serving", loading: "Loading", draining: "Draining", not_serving: "Not serving", unknown: "No answer" }[word]);
    mark.classList.add("pill");
    return [mark];
  });
  show("model", report.model, () => [report.model || ""]);
  show("version", report.version, () => [`Paceline ${report.version}`]);
  $("leave").hidden = !report.session;
}
function renderBanner(report) {
  let text = "";
  if (state.failed) text = "The gateway does not answer. Its figures are old; the page goes on trying.";
  else if (report.serving.status !== "serving") text = report.serving.message || "The service takes no requests now.";
  else if (!report.service) text = "The supervisor does not answer. Figures of the other processes are missing.";
  $("banner").hidden = text === "";
  $("banner").classList.toggle("bad", state.failed || report.serving.status !== "serving");
  show("banner", text, () => [text]);
}
function renderSpeed(report) {
  const now = mean(report.throughput.tokens_per_s.slice(-5));
  document.title = `${speed(now)} tok/s · Paceline`;
  show("speed", speed(now), () => [speed(now), el("small", "", " tokens per second, mean of 10 s")]);
  renderChart(report);
}
function mean(rates) {
  return rates.length ? rates.reduce((sum, rate) => sum + rate, 0) / rates.length : 0;
}
function niceMax(value) {
  if (value <= 0) return 10;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 3, 4, 5, 6, 8, 10].map(step => step * power).find(top => top >= value);
}
function renderChart(report) {
  const { tokens_per_s: rates, interval_s: interval, most, calls } = report.throughput;
  const box = $("chart"), width = box.clientWidth, height = box.clientHeight;
  if (width === 0) return;
  const left = 42, right = width - 4, top = 8, bottom = height - 22;
  const peak = Math.max(0, ...rates), limit = niceMax(peak);
  const x = place => right - (most - 1 - place) * (right - left) / (most - 1);
  const y = rate => bottom - rate / limit * (bottom - top);
  const first = most - rates.length;
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  svg.setAttribute("aria-label", `Tokens per second in the last ten minutes, at most ${speed(peak)}`);
  for (const part of [0, .5, 1]) {
    const at = y(limit * part);
    svg.append(draw("line", { class: "grid", x1: left, x2: right, y1: at, y2: at }));
    svg.append(draw("text", { x: left - 8, y: at + 4, "text-anchor": "end" }, count.format(limit * part)));
  }
  const minutes = most * interval / 60, step = width < 480 ? 5 : 2;
  for (let ago = 0; ago <= minutes; ago += step) {
    const label = ago === 0 ? "now" : `${ago} min`;
    const at = right - ago / minutes * (right - left);
    svg.append(draw("text", { x: at, y: height - 4, "text-anchor": ago === 0 ? "end" : ago === minutes ? "start" : "middle" }, label));
  }
  if (rates.length === 1) svg.append(draw("circle", { class: "dot", cx: right, cy: y(rates[0]), r: 4 }));
  if (rates.length > 1) {
    // The area has every sample, the line the mean of 10 s that is the figure above.
    const points = values => values.map((rate, place) => `${x(first + place).toFixed(1)},${y(rate).toFixed(1)}`).join(" ");
    svg.append(draw("polygon", { class: "area", points: `${x(first).toFixed(1)},${bottom} ${points(rates)} ${right},${bottom}` }));
    svg.append(draw("polyline", { class: "trace", points: points(rates.map((_, place) => mean(rates.slice(Math.max(0, place - 4), place + 1)))) }));
  }
  if (peak === 0) svg.append(draw("text", { x: (left + right) / 2, y: (top + bottom) / 2 - 8, "text-anchor": "middle" }, rates.length < most ? "No tokens yet" : "No tokens in the last ten minutes"));
  box.replaceChildren(svg);
  let text = `Peak ${speed(peak)}`;
  if (state.cursor !== null && rates.length) {
    const wanted = Math.round((state.cursor - left) / (right - left) * (most - 1)) - first;
    const place = Math.min(Math.max(wanted, 0), rates.length - 1), at = x(first + place);
    svg.append(draw("line", { class: "cursor", x1: at, x2: at, y1: top, y2: bottom }), draw("circle", { class: "dot", cx: at, cy: y(rates[place]), r: 4.5 }));
    const when = new Date((report.time - (rates.length - 1 - place) * interval) * 1000);
    text = `${clock(when)} · ${speed(rates[place])} tokens per second · ${count.format(calls[place])} ${calls[place] === 1 ? "request" : "requests"}`;
  }
  show("readout", text, () => [text]);
}
function renderRequests(service, calls) {
  const { active, queued, speculative } = service.requests, plain = active - speculative;
  const finished = service.routes.reduce((sum, route) => sum + route.requests, 0);
  show("requests", [active, queued, speculative, calls, finished], () => [
    el("p", "big", count.format(active), el("small", "", active === 1 ? " request runs" : " requests run")),
    bar([["solid", speculative], ["grey", plain]]),
    list([["solid", "Speculative lane", count.format(speculative)], ["grey", "Plain lane", count.format(plain)],
      [null, "In the queue", count.format(queued)], [null, "Requests in the gateway", count.format(calls)],
      [null, "Finished", count.format(finished)]]),
  ]);
}
function renderSpeculation(service) {
  const { link, drafter, refused_drafters: refused } = service;
  const { state: word, reason: why, cycles, drafted, accepted, tokens_per_cycle: perCycle, late } = link;
  show("speculation", [link, drafter.state, refused], () => {
    if (cycles === 0) {
      const none = ["absent", "stopped"].includes(drafter.state);
      return [
        el("p", "big", none ? "Off" : "–", el("small", "", none ? " no drafter runs" : " no draft was verified yet")),
        el("p", "note", none ? "Every request decodes plainly." : "Figures come with the first request that drafts."),
        ...notes(why, refused), list([[null, "Link to the drafter", stateMark(word)]]),
      ];
    }
    return [
      el("p", "big", hundredth.format(perCycle), el("small", "", " tokens per cycle")),
      bar([["solid", accepted], ["empty", drafted - accepted]]),
      list([["solid", "Accepted", `${count.format(accepted)} (${percent(accepted, drafted)})`], ["empty", "Drafted", count.format(drafted)],
        [null, "Cycles", count.format(cycles)], [null, "Late drafts", count.format(late)], [null, "Link to the drafter", stateMark(word)]]),
      ...notes(why, refused),
    ];
  });
}
function notes(why, refused) {
  const texts = refused.map(one => `${one.model} was refused: ${one.reason}`);
  if (why) texts.unshift(why);
  return texts.map((text, place) => el("div", "note", ...reason(`note ${place}`, text)));
}
function renderKv(service) {
  const { budget_bytes: budget, held_bytes: held, prefix_bytes: prefix, pressure, reduced_reason: reduced } = service.kv;
  const why = reduced === "reboot_while_busy" ? "the machine went down while busy" : words(reduced || "");
  const free = Math.max(0, budget - held - prefix);
  show("kv", service.kv, () => [
    el("p", "big", `${Math.round(100 * pressure)} %`, el("small", "", ` of ${bytes(budget)} held`)),
    bar([["solid", held], ["hatched", prefix], ["empty", free]]),
    list([["solid", "Running requests", bytes(held)], ["hatched", "Prefix cache", bytes(prefix)], ["empty", "Free", bytes(free)]]),
    reduced ? el("p", "note", `KV budget reduced to 80 % because ${why}.`) : null,
  ].filter(node => node));
}
function renderMemory(service) {
  const { budget_bytes: budget, target_bytes: target, drafter_bytes: drafter, cache_bytes: cache, available_bytes: available } = service.memory;
  const ours = target + drafter + cache;
  show("memory", service.memory, () => [
    el("p", "big", bytes(ours), el("small", "", ` of ${bytes(budget)}`)),
    bar([["solid", target], ["hatched", drafter], ["grey", cache], ["empty", Math.max(0, budget - ours)]]),
    list([["solid", "Target", bytes(target)], ["hatched", "Drafter", bytes(drafter)], ["grey", "Caches", bytes(cache)], [null, "Free in the machine", bytes(available)]]),
  ]);
}
function renderProcesses(service) {
  const shown = ["gateway", "supervisor", "target", "drafter"].map(name => [name, service[name]]);
  const key = shown.map(([, process]) => ({ ...process, uptime_s: age(process.uptime_s) }));
  show("processes", key, () => shown.flatMap(([name, process]) => processRows(name, process)));
}
function processRows(name, process) {
  const cell = (kind, label, ...children) => {
    const node = el("td", kind, ...children);
    if (label && node.hasChildNodes()) node.dataset.label = label;
    return node;
  };
  let text = words(process.state);
  if (process.state === "loading" && process.weight_bytes > 0) text += ` ${percent(process.loaded_bytes, process.weight_bytes)}`;
  let model = process.model || "";
  if (model && process.weight_bytes > 0) model += ` (${bytes(process.weight_bytes)})`;
  const alive = process.pid !== null;
  const row = el("tr", "process", cell("name", "", name), cell("", "", stateMark(process.state, text)), cell("path", "", ...(model ? [model] : [])),
    cell("number", "up", ...(alive ? [age(process.uptime_s)] : [])),
    cell("number", "restarts", count.format(process.restarts)), cell("number", "pid", ...(alive ? [String(process.pid)] : [])));
  if (!process.reason) return [row];
  const why = el("td", "why", ...reason(`process ${name}`, process.reason));
  why.colSpan = 6;
  return [row, el("tr", "", why)];
}
function renderRoutes(service) {
  const routes = [...service.routes].sort((one, other) => other.requests - one.requests).slice(0, 8);
  const most = Math.max(1, ...routes.map(route => route.requests));
  show("routes", routes, () => routes.length === 0 ? [el("li", "soft", "None since the supervisor’s start.")] : routes.map(route =>
    el("li", "", el("div", "row", el("span", "", route.lane, el("span", "soft", ` · ${words(route.reason)}`)), el("span", "", count.format(route.requests))),
      bar([[route.lane === "plain" ? "grey" : "solid", route.requests], ["empty", most - route.requests]]))));
}
function renderEvents(report) {
  show("events", report.events, () => report.events.length === 0 ? [el("li", "soft", "None yet.")] : report.events.map(event => {
    const when = new Date(event.time), today = when.toDateString() === new Date().toDateString();
    const time = el("time", "", today ? clock(when) : `${when.toLocaleDateString("en", { month: "short", day: "2-digit" })} ${clock(when)}`);
    time.dateTime = event.time;
    const subject = event.kind === "link" ? `link of ${event.subject}` : event.kind === "drafter" ? `drafter ${event.subject}` : event.subject;
    const change = event.from ? ` ${words(event.from)} → ${words(event.to)}` : ` ${words(event.to)}`;
    return el("li", "", time, el("span", "", el("span", "name", subject), change), event.cause ? el("div", "cause", ...reason(`event ${event.term} ${event.number}`, event.cause)) : null);
  }));
}
const UNKNOWN = { state: "unknown", pid: null, restarts: 0, uptime_s: 0, model: null, weight_bytes: 0, loaded_bytes: 0, reason: null };
function renderStatus(report) {
  $("status-view").classList.toggle("old", state.failed);
  renderSpeed(report);
  renderEvents(report);
  const service = report.service;
  for (const id of ["requests", "speculation", "kv", "memory", "routes"]) $(id).parentElement.hidden = service === null;
  if (service === null) {
    renderProcesses({ gateway: { ...UNKNOWN, state: "ready" }, supervisor: UNKNOWN, target: UNKNOWN, drafter: UNKNOWN });
    return;
  }
  renderRequests(service, report.calls);
  renderSpeculation(service);
  renderKv(service);
  renderMemory(service);
  renderProcesses(service);
  renderRoutes(service);
}
const chart = $("chart");
chart.addEventListener("pointermove", event => { state.cursor = event.clientX - chart.getBoundingClientRect().left; if (state.report) renderChart(state.report); });
chart.addEventListener("pointerleave", () => { state.cursor = null; if (state.report) renderChart(state.report); });
new ResizeObserver(() => { if (state.report) renderChart(state.report); }).observe(chart);
