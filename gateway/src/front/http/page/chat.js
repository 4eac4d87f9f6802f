
// The chat. The conversation is kept in this browser alone; a question carries all of it.
const STORE = "paceline-chat", MAX_STORED = 1000000, SAVE_MS = 1000, FRAME_MS = 60;
// Types that the service decodes, its longest side of an image, and the bytes of a file of which a request has room for eight.
const SENT_TYPES = ["image/png", "image/jpeg", "image/webp", "image/gif"], MAX_SIDE = 8192, MAX_FILE = 1500000;
// Turns come in pairs: { role: "user", text, pictures, lost } and { role: "assistant", text, thought, end, note, figures }.
// `end` is open, done, length, stopped or cut.
const talk = { turns: [], pictures: [], nodes: new Map(), stopping: null, saved: 0 };

function restore() {
  let kept = {};
  try { kept = JSON.parse(localStorage.getItem(STORE)) || {}; } catch { /* Nothing that can be read is kept. */ }
  talk.turns = kept.turns?.length % 2 === 0 ? kept.turns.map(turn => ({ pictures: [], ...turn })) : [];
  $("system").value = kept.system || "";
  $("temperature").value = kept.temperature || "";
  const last = talk.turns.at(-1);
  if (last && last.end === "open") {
    last.end = "stopped";
    if (!last.text && !last.thought) takeBack();
  }
  drawTurns();
}
// Images are not kept, and of a long conversation the oldest turns are not.
function save() {
  talk.saved = Date.now();
  const turns = talk.turns.map(({ pictures, ...turn }) => pictures.length ? { ...turn, lost: (turn.lost || 0) + pictures.length } : turn);
  const text = () => JSON.stringify({ system: $("system").value, temperature: $("temperature").value, turns });
  while (turns.length > 2 && text().length > MAX_STORED) turns.splice(0, 2);
  try { localStorage.setItem(STORE, text()); } catch { /* No room, or not allowed: the conversation lasts as long as the page. */ }
}
function begin() {
  talk.stopping?.abort();
  setBusy(null);
  talk.turns = [];
  drawTurns();
  tell("");
}
// Deletes everything, as at the end of a session.
function forget() {
  begin();
  usePictures([]);
  for (const id of ["system", "temperature", "question"]) $(id).value = "";
  localStorage.removeItem(STORE);
}

// The conversation on the page. A turn's node is made once, so that a screen reader reads it once.
function drawTurns() {
  for (const [turn, view] of talk.nodes) if (!talk.turns.includes(turn)) { view.node.remove(); talk.nodes.delete(turn); }
  for (const turn of talk.turns) {
    if (!talk.nodes.has(turn)) {
      const view = turn.role === "user" ? questionView(turn) : answerView();
      talk.nodes.set(turn, view);
      $("turns").append(view.node);
    }
    if (turn.role === "assistant") drawAnswer(turn);
  }
  $("welcome").hidden = talk.turns.length > 0;
  $("fresh").hidden = talk.turns.length === 0;
}
function questionView({ text, pictures, lost }) {
  const images = pictures.map((url, place) => pictureNode(url, `Image ${place + 1} of the question`));
  return { node: el("li", "asked", el("div", "bubble", images.length ? el("div", "shown", ...images) : null,
    lost ? el("p", "note", `${lost === 1 ? "An image is" : `${lost} images are`} not kept after a reload.`) : null, text ? el("p", "", text) : null)) };
}
function pictureNode(url, name) {
  const image = el("img", "");
  [image.src, image.alt] = [url, name];
  return image;
}
function answerView() {
  const summary = el("summary", "", ""), thought = el("div", "", ""), fold = el("details", "thought", summary, thought);
  const said = el("div", "said"), wait = el("p", "wait", el("span", "unseen", "Waiting for the first token"), el("i", ""), el("i", ""), el("i", "")), foot = el("div", "foot");
  return { node: el("li", "answered", fold, said, wait, foot), fold, summary, thought, said, wait, foot };
}
function drawAnswer(turn) {
  const { node, fold, summary, thought, said, wait, foot } = talk.nodes.get(turn), isOpen = turn.end === "open";
  node.setAttribute("aria-busy", String(isOpen));
  fold.hidden = !turn.thought;
  summary.textContent = isOpen && !turn.text ? "Thinking …" : "Thought";
  if (thought.textContent !== (turn.thought || "")) thought.textContent = turn.thought || "";
  showMarkdown(said, turn.text);
  wait.hidden = !isOpen || turn.text !== "" || Boolean(turn.thought);
  foot.hidden = isOpen;
  if (isOpen) return;
  const again = el("button", "plain", "Retry"), isLast = turn === talk.turns.at(-1);
  again.type = "button";
  again.disabled = talk.stopping !== null;
  again.addEventListener("click", retry);
  const why = { stopped: "Stopped.", length: "The answer has reached its longest length.", cut: `The answer is cut off: ${turn.note}` }[turn.end];
  foot.replaceChildren(...[why ? el("p", turn.end === "cut" ? "why bad" : "why", why) : null, turn.figures ? el("span", "", figuresOf(turn.figures)) : null,
    el("span", "acts", turn.text ? copyButton(() => turn.text, said) : null, isLast ? again : null)].filter(child => child));
}
// Lane and speed of an answer. The first token is the prompt's, so the speed is that of the others.
function figuresOf({ lane, tokens, ttft, total, drafted, accepted, resumed }) {
  const decoding = (total - ttft) / 1000;
  return [tokens > 1 && decoding > 0 ? `${speed((tokens - 1) / decoding)} tokens per second` : "", `${count.format(tokens)} ${tokens === 1 ? "token" : "tokens"}`,
    lane ? `${lane} lane` : "", drafted > 0 ? `${count.format(accepted)} of ${count.format(drafted)} drafted tokens accepted` : "",
    `first token after ${ttft < 1000 ? `${Math.round(ttft)} ms` : `${tenth.format(ttft / 1000)} s`}`, resumed ? "went on after a process had ended" : ""].filter(text => text).join(" · ");
}
const isAtEnd = () => innerHeight + scrollY > document.documentElement.scrollHeight - 80;
const goToEnd = () => scrollTo(0, document.documentElement.scrollHeight);
// Says what went wrong above the field, with what the button does about it.
function tell(text, again = null) {
  const button = el("button", "quiet", "Try again");
  button.type = "button";
  button.addEventListener("click", () => { tell(""); again(); });
  $("trouble").hidden = text === "";
  $("trouble").replaceChildren(...(text === "" ? [] : [el("span", "", text), ...(again ? [button] : [])]));
}

// Questions and answers.
function submit(event) {
  event?.preventDefault();
  const text = $("question").value.trim();
  if (talk.stopping || text === "" && talk.pictures.length === 0) return;
  talk.turns.push({ role: "user", text, pictures: talk.pictures });
  $("question").value = "";
  usePictures([]);
  grow();
  answer(null);
}
// Asks the last question again. Its answer comes back if there is no other.
function retry() {
  if (!talk.stopping && talk.turns.length) answer(talk.turns.pop());
}
// The last question goes back into the field, before what was written since.
function takeBack() {
  talk.turns.pop();
  const { text, pictures } = talk.turns.pop();
  $("question").value = [text, $("question").value].filter(part => part.trim()).join("\n\n");
  usePictures([...pictures, ...talk.pictures]);
  grow();
}
function messages() {
  const system = $("system").value.trim(), list = system ? [{ role: "system", content: system }] : [];
  for (let at = 0; at + 1 < talk.turns.length; at += 2) {
    const [{ text, pictures }, { text: said, end }] = talk.turns.slice(at, at + 2);
    // A question whose answer has no text would have no place between two others.
    if (end !== "open" && said === "") continue;
    const parts = [...pictures.map(url => ({ type: "image_url", image_url: { url } })), ...(text ? [{ type: "text", text }] : [])];
    list.push({ role: "user", content: pictures.length ? parts : text });
    if (end !== "open") list.push({ role: "assistant", content: said });
  }
  return list;
}
async function answer(previous) {
  const turn = { role: "assistant", text: "", thought: "", end: "open", pictures: [] }, stopping = new AbortController();
  talk.turns.push(turn);
  setBusy(stopping);
  tell("");
  drawTurns();
  save();
  goToEnd();
  let trouble = "";
  try {
    trouble = await stream(turn, stopping.signal);
  } catch (error) {
    if (stopping.signal.aborted) turn.end = "stopped";
    else trouble = error instanceof TypeError ? "the gateway does not answer" : String(error.message);
  }
  // Another conversation has begun.
  if (talk.stopping !== stopping) return;
  const follows = isAtEnd();
  setBusy(null);
  if (turn.end === "open") [turn.end, turn.note] = ["cut", trouble];
  const isEmpty = turn.text === "" && turn.thought === "" && turn.end !== "done";
  if (isEmpty && previous) talk.turns.splice(-1, 1, previous);
  else if (isEmpty) takeBack();
  drawTurns();
  if (follows) goToEnd();
  save();
  if (isEmpty && trouble) tell(`No answer: ${trouble}`, previous ? retry : submit);
  if (isEmpty || document.activeElement === document.body) $("question").focus();
}
// Reads an answer into its turn. Returns why it has no end, or nothing.
async function stream(turn, signal) {
  const temperature = $("temperature").value === "" ? {} : { temperature: Number($("temperature").value) };
  const body = JSON.stringify({ messages: messages(), stream: true, stream_options: { include_usage: true }, ...temperature });
  const reply = await fetch("/status/chat", { method: "POST", headers: { "content-type": "application/json" }, body, signal });
  if (reply.status === 401) { ask(); return "the session has ended; sign in, and send the question again"; }
  if (!reply.ok) {
    const { message, reason } = (await reply.json().catch(() => ({}))).error || { message: `the gateway refused: ${reply.status}` };
    return reason === "PROMPT_TOO_LONG" ? `${message}. A new chat has room again.` : message;
  }
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let drawn = 0, timer = 0, text = "";
  const draw = () => {
    [drawn, timer] = [Date.now(), 0];
    if (!talk.nodes.has(turn)) return;
    const follows = isAtEnd();
    drawAnswer(turn);
    if (follows) goToEnd();
    if (drawn - talk.saved > SAVE_MS) save();
  };
  try {
    for (let more = await reader.read(); !more.done; more = await reader.read()) {
      const events = (text + more.value).split("\n\n");
      text = events.pop();
      for (const event of events) {
        if (!event.startsWith("data: ") || event === "data: [DONE]") continue;
        const trouble = take(turn, JSON.parse(event.slice(6)));
        if (trouble) return trouble;
      }
      if (timer === 0) timer = setTimeout(draw, Math.max(0, drawn + FRAME_MS - Date.now()));
    }
  } finally { clearTimeout(timer); }
  return "the connection ended before the answer did";
}
// Adds a chunk of an answer. Returns the error that a chunk may be.
function take(turn, { error, choices: [choice] = [], usage, paceline }) {
  if (error) return error.message;
  if (choice?.delta.reasoning_content) turn.thought += choice.delta.reasoning_content;
  if (choice?.delta.content) turn.text += choice.delta.content;
  if (choice?.finish_reason) turn.end = choice.finish_reason === "length" ? "length" : "done";
  if (usage && paceline) {
    const { route, speculation: { drafted, accepted }, timing: { ttft_ms: ttft, total_ms: total }, resumed } = paceline;
    turn.figures = { lane: route?.lane, tokens: usage.completion_tokens, ttft, total, drafted, accepted, resumed };
  }
  return "";
}
function setBusy(stopping) {
  talk.stopping = stopping;
  $("send").hidden = stopping !== null;
  $("stop").hidden = stopping === null;
}

// Images of the question.
function usePictures(pictures) {
  talk.pictures = pictures;
  $("pictures").hidden = pictures.length === 0;
  $("pictures").replaceChildren(...pictures.map((url, place) => {
    const remove = el("button", "round", draw("svg", { "aria-hidden": "true" }, draw("use", { href: "#cross" })));
    remove.type = "button";
    remove.setAttribute("aria-label", `Remove image ${place + 1}`);
    remove.addEventListener("click", () => { usePictures(talk.pictures.filter((_, other) => other !== place)); $("question").focus(); });
    return el("li", "", pictureNode(url, `Image ${place + 1}`), remove);
  }));
  $("hint").textContent = pictures.length ? "Images are not kept after a reload." : "Enter sends, Shift+Enter begins a line.";
}
async function addFiles(files) {
  const limits = state.report?.images, images = [...files].filter(file => file.type.startsWith("image/"));
  if (images.length === 0) return;
  if (!limits) return tell("The served model reads no images.");
  tell("");
  for (const file of images) {
    if (talk.pictures.length >= limits.max_images) return tell(`A question has ${limits.max_images} images at most.`);
    try { usePictures([...talk.pictures, await urlOf(file, limits)]); } catch { tell(`${file.name} is no image that this browser can read.`); }
  }
  $("question").focus();
}
// The image as it is, or, if the service would refuse it, as large as the model reads it at most.
async function urlOf(file, { max_pixels: most, read_pixels: read }) {
  const bitmap = await createImageBitmap(file), { width, height } = bitmap, longest = Math.max(width, height);
  if (SENT_TYPES.includes(file.type) && file.size <= MAX_FILE && width * height <= most && longest <= MAX_SIDE) {
    return new Promise((done, failed) => {
      const reader = new FileReader();
      [reader.onload, reader.onerror] = [() => done(reader.result), failed];
      reader.readAsDataURL(file);
    });
  }
  const scale = Math.min(1, MAX_SIDE / longest, Math.sqrt(Math.min(read, most) / (width * height))), canvas = el("canvas", "");
  [canvas.width, canvas.height] = [width, height].map(side => Math.max(1, Math.floor(side * scale)));
  const paper = canvas.getContext("2d");
  paper.fillStyle = "#fff";
  paper.fillRect(0, 0, canvas.width, canvas.height);
  paper.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", .92);
}
function renderModel({ model, images }) {
  show("asked-model", model, () => [model || "the model"]);
  $("attach").hidden = !images;
}
// The field is as high as its text, up to a third of the window.
function grow() {
  const field = $("question");
  field.style.height = "auto";
  field.style.height = `${Math.min(field.scrollHeight, innerHeight / 3)}px`;
}
$("ask").addEventListener("submit", submit);
$("question").addEventListener("input", grow);
$("question").addEventListener("keydown", event => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event); });
$("question").addEventListener("paste", event => { if (event.clipboardData.files.length) { event.preventDefault(); addFiles(event.clipboardData.files); } });
$("stop").addEventListener("click", () => talk.stopping?.abort());
$("fresh").addEventListener("click", () => { begin(); save(); $("question").focus(); });
$("attach").addEventListener("click", () => $("files").click());
$("files").addEventListener("change", () => { addFiles($("files").files); $("files").value = ""; });
for (const id of ["system", "temperature"]) $(id).addEventListener("change", save);
for (const kind of ["dragover", "drop"]) {
  document.addEventListener(kind, event => {
    if (!event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    if (kind === "drop" && !$("chat-view").hidden) addFiles(event.dataTransfer.files);
  });
}
addEventListener("pagehide", () => { if (talk.stopping) save(); });
// Signing out in another tab deletes the conversation in all.
addEventListener("storage", event => { if (event.key === STORE && event.newValue === null) forget(); });
usePictures([]);
restore();
