
// The views, the questions to the gateway, and the session.
const POLL_MS = 2000;
function showView() {
  const view = location.hash === "#status" ? "status" : "chat", door = !$("door").hidden;
  let appears = false;
  for (const name of ["chat", "status"]) {
    const node = $(`${name}-view`), isHidden = door || name !== view || state.report === null && (name === "status" || !state.failed);
    appears ||= node.hidden && !isHidden;
    node.hidden = isHidden;
    if (name === view) $(`to-${name}`).setAttribute("aria-current", "page");
    else $(`to-${name}`).removeAttribute("aria-current");
  }
  document.body.classList.toggle("chatting", view === "chat" && !door);
  if (!appears) return;
  if (view === "status") return scrollTo(0, 0);
  goToEnd();
  // On a phone the focus would bring the keyboard.
  if (document.activeElement === document.body && matchMedia("(pointer: fine)").matches) $("question").focus({ preventScroll: true });
}
function render() {
  showView();
  const report = state.report;
  if (report === null) return;
  renderHead(report);
  renderBanner(report);
  renderStatus(report);
  renderModel(report);
}
async function poll() {
  clearTimeout(state.timer);
  if (document.hidden) return;
  try {
    if (!await refresh()) return ask();
    state.failed = false;
    $("door").hidden = true;
    const text = `Updated ${clock(new Date(state.report.time * 1000))}`;
    show("updated", text, () => [text]);
  } catch {
    state.failed = true;
    if (state.report === null) {
      $("banner").hidden = false;
      show("banner", "first", () => ["The gateway does not answer. The page goes on trying."]);
    }
  }
  render();
  state.timer = setTimeout(poll, POLL_MS);
}
// Reads the figures. False: the page needs a key.
async function refresh() {
  const answer = await fetch("/status", { cache: "no-store", signal: AbortSignal.timeout(10000) });
  if (answer.status === 401) return false;
  if (!answer.ok) throw new Error(String(answer.status));
  state.report = await answer.json();
  return true;
}
function ask() {
  clearTimeout(state.timer);
  state.report = null;
  document.title = "Paceline";
  for (const id of ["state", "model", "updated", "version"]) show(id, "", () => []);
  for (const id of ["leave", "banner"]) $(id).hidden = true;
  $("door").hidden = false;
  render();
  $("key").focus();
}
async function enter(event) {
  event.preventDefault();
  const key = $("key"), button = event.target.querySelector("button"), answer = event.target.querySelector(".answer");
  answer.textContent = "";
  button.disabled = true;
  try {
    const reply = await fetch("/status/session", { method: "POST", headers: { authorization: `Bearer ${key.value.trim()}` } });
    if (reply.ok) {
      key.value = "";
      await poll();
    } else {
      answer.textContent = reply.status === 401 ? "This key is not known here." : `The gateway refused: ${reply.status}.`;
    }
  } catch (error) {
    answer.textContent = error instanceof TypeError && /[^\x20-\x7e]/.test(key.value) ? "A key has no such characters." : "The gateway does not answer. Try again.";
  }
  button.disabled = false;
}
async function leave() {
  forget();
  try { await fetch("/status/session", { method: "DELETE" }); } catch { /* The next question tells. */ }
  poll();
}
document.querySelector("#door form").addEventListener("submit", enter);
$("leave").addEventListener("click", leave);
document.addEventListener("visibilitychange", poll);
addEventListener("hashchange", render);
render();
poll();
