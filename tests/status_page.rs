//! The page of a whole service in a browser: the view of its state, and the chat. The screenshots of
//! each run are left in `status-page/` beside the programs.

use std::path::PathBuf;

use nix::sys::signal::Signal;
use paceline_process::keys::KeyLine;
use paceline_proto::v1::RouteWish;
use paceline_tests::browser::{Page, Window};
use paceline_tests::images::base64;
use paceline_tests::prompts::some_of_each;
use paceline_tests::{Stack, chat, programs, repository, signal, wait};
use serde_json::{Value, json};

use std::os::unix::fs::PermissionsExt as _;

const KEY: &str = "pl_page_0123456789abcdef";
/// The view of the service's state.
const STATUS: &str = "#status";
/// A word of a prompt.
const CANARY: &str = "quetzalcoatlus";

const WINDOWS: [(&str, Window); 4] = [
    ("desktop-light", Window { width: 1200, height: 900, dark: false }),
    ("desktop-dark", Window { width: 1200, height: 900, dark: true }),
    ("phone-light", Window { width: 390, height: 844, dark: false }),
    ("phone-dark", Window { width: 390, height: 844, dark: true }),
];

/// The address of a view.
fn url(stack: &Stack, view: &str) -> String {
    format!("http://{}/{view}", stack.http_address())
}

/// Width and height of a PNG (w3.org/TR/png, IHDR).
fn size(png: &[u8]) -> (u32, u32) {
    assert_eq!(&png[1..4], b"PNG");
    let number = |at: usize| u32::from_be_bytes(png[at..at + 4].try_into().expect("4 bytes"));
    (number(16), number(20))
}

/// Takes a screenshot in each window, and checks that the page fits its width.
fn take_screenshots(page: &Page, name: &str) {
    let dir: PathBuf = programs().join("status-page");
    std::fs::create_dir_all(&dir).expect("writable");
    for (window_name, window) in WINDOWS {
        page.resize(window);
        // Another layout has what has the focus elsewhere.
        page.value("document.querySelector(':focus')?.scrollIntoView({ block: 'center' })");
        let fits = "document.documentElement.scrollWidth <= innerWidth";
        assert_eq!(page.value(fits), true, "{name} is wider than {window_name}");
        let columns =
            "getComputedStyle(document.getElementById('status-view')).gridTemplateColumns";
        let columns = page.value(columns).as_str().expect("text").split(' ').count();
        if page.value("location.hash") == STATUS && page.value("state.report !== null") == true {
            assert_eq!(columns == 1, window.width < 700, "{columns} columns in {window_name}");
        }
        let screenshot = page.screenshot();
        assert_eq!(size(&screenshot), (window.width, window.height));
        std::fs::write(dir.join(format!("{name}-{window_name}.png")), screenshot).expect("written");
    }
}

/// A service that serves, with one key, of the name `page`, and these settings.
fn with_key(settings: &str) -> Stack {
    let mut stack = Stack::new("");
    let file = stack.path("keys");
    let line = KeyLine::of("page", KEY).expect("fine");
    std::fs::write(&file, format!("{line}\n")).expect("written");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("ours");
    stack.set(&format!("gateway.api_keys_file = {file:?}\n{settings}"));
    stack.serve();
    wait("the HTTP address", || stack.http_get("/").is_ok().then_some(()));
    stack.wait_status("the target", |status| status["target"]["state"] == "ready");
    stack
}

/// Enters a key in the page's form.
fn enter(page: &Page, key: &str) {
    page.value(&format!("document.getElementById('key').value = {key:?}; 0"));
    page.value("document.querySelector('#door button').click()");
}

/// Checks that the browser found nothing wrong.
fn check_complaints(page: &Page) {
    assert_eq!(page.complaints(), Vec::<String>::new());
}

#[test]
#[ignore = "more: a browser"]
// More than 60 lines: one service, which takes seconds to start, is shown in all that befalls it.
fn the_page_shows_requests_speculation_crashes_and_the_end_of_a_service() {
    let test = "the_page_shows_requests_speculation_crashes_and_the_end_of_a_service";
    let stack = Stack::drafting("");
    let drafted = some_of_each(1)[0].ask.clone().route(RouteWish::Speculative).exactly(200);
    stack.ask(drafted).expect("served");
    let secret = format!("Tell me of the {CANARY}.");
    stack.ask(chat(&secret).route(RouteWish::Plain).exactly(16)).expect("served");
    let Some(page) = Page::open(test, &url(&stack, STATUS)) else { return stack.stop() };
    let text = page.until("a service with figures", |text| {
        text.contains("Serving") && text.contains("tokens per cycle") && text.contains("Peak")
    });
    for expected in ["demo-target", "gateway", "supervisor", "target", "drafter", "Accepted"] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    page.until("routes and events", |text| {
        text.contains("speculative · forced") && text.contains("loading → ready")
    });

    let running = stack.start(chat(&secret).route(RouteWish::Speculative).exactly(3_000));
    page.until("a request that runs", |text| text.contains("1 request runs"));
    take_screenshots(&page, "running");
    running.hang_up();
    page.until("no request", |text| text.contains("0 requests run"));

    signal(stack.pid("target"), Signal::SIGKILL);
    page.until("the target's crash", |text| text.contains("signal 9"));
    take_screenshots(&page, "crashed");
    page.until("the next target", |text| text.contains("Serving") && !text.contains("Not serving"));
    let markup = page.value("document.documentElement.outerHTML").to_string();
    let figures = stack.http_get("/status").expect("answered").body;
    for place in [&markup, &figures] {
        assert!(!place.contains(CANARY), "a prompt is on the page");
    }
    check_complaints(&page);
    stack.stop();
    page.until("the end of the gateway", |text| {
        text.contains("The gateway does not answer")
            && text.contains("No answer")
            && !text.contains("Serving")
    });
    take_screenshots(&page, "stopped");
    check_complaints(&page);
}

#[test]
#[ignore = "more: a browser"]
fn a_service_without_a_drafter_says_that_every_request_decodes_plainly() {
    let test = "a_service_without_a_drafter_says_that_every_request_decodes_plainly";
    let stack = Stack::ready("drafter.model = \"\"\n");
    stack.ask(chat("Tell me of rivers.").exactly(64)).expect("served");
    let Some(page) = Page::open(test, &url(&stack, STATUS)) else { return stack.stop() };
    let text = page.until("the figures", |text| text.contains("Every request decodes plainly."));
    assert!(text.contains("absent") && !text.contains("tokens per cycle"), "{text}");
    // The machine of a test does not go down, so the page's own script gets the figures of one that did.
    page.value(
        "renderKv({ kv: { ...state.report.service.kv, reduced_reason: 'reboot_while_busy' } })",
    );
    let reduced = page.value("document.getElementById('kv').innerText").to_string();
    let expected = "KV budget reduced to 80 % because the machine went down while busy.";
    assert!(reduced.contains(expected), "{reduced}");
    take_screenshots(&page, "plain");
    check_complaints(&page);
    stack.stop();
}

#[test]
#[ignore = "more: a browser"]
fn with_keys_the_page_asks_for_one_and_no_script_finds_the_session() {
    let test = "with_keys_the_page_asks_for_one_and_no_script_finds_the_session";
    let stack = with_key("limits.max_new_tokens = 150\n");
    let Some(page) = Page::open(test, &url(&stack, STATUS)) else { return stack.stop() };
    let text = page.until("the form", |text| text.contains("API key"));
    assert!(!text.contains("Processes") && !text.contains("demo-target"), "{text}");
    take_screenshots(&page, "door");
    enter(&page, "pl_page_wrong_0123456789");
    page.until("a refusal", |text| text.contains("This key is not known here."));
    enter(&page, KEY);
    let text = page.until("the figures", |text| text.contains("Processes"));
    assert!(text.contains("Sign out") && !text.contains("API key"), "{text}");
    assert_eq!(page.value("document.cookie"), "");
    assert_eq!(page.value("document.getElementById('key').value"), "");
    page.value("location.hash = ''");
    ask(&page, &format!("Tell me of the {CANARY}."));
    page.until("an answer in the session", |text| text.contains("first token after"));
    assert!(stored(&page).contains(CANARY), "the conversation is kept in the browser");
    page.value("document.getElementById('leave').click()");
    page.until("the form again", |text| text.contains("API key"));
    assert_eq!(page.value("localStorage.length"), 0, "it is deleted with the session");
    let question = "fetch('/status/chat', { method: 'POST', body: '{}' })";
    for path in ["fetch('/status')", question] {
        assert_eq!(page.value(&format!("{path}.then(answer => answer.status)")), 401, "{path}");
    }
    assert!(!page.value("document.documentElement.outerHTML").to_string().contains(CANARY));
    check_complaints(&page);
    stack.stop();
}

/// Types a question into the field and sends it.
fn ask(page: &Page, question: &str) {
    wait("the field", || {
        page.value("document.getElementById('question').focus()");
        (page.value("document.activeElement.id") == "question").then_some(())
    });
    page.type_text(question);
    page.press_enter(false);
}

/// What the browser keeps.
fn stored(page: &Page) -> String {
    page.value("Object.values(localStorage).join()").as_str().expect("text").to_owned()
}

/// The text of all turns.
fn turns(page: &Page) -> String {
    page.value("document.getElementById('turns').innerText").as_str().expect("text").to_owned()
}

/// Waits until this expression is true in the page.
fn until_true(page: &Page, expression: &str) {
    wait(expression, || (page.value(expression) == true).then_some(()));
}

/// Has the next question answered by this text, in pieces, instead of by the service. Without an end
/// the answer stays open until it is stopped.
fn script(page: &Page, text: &str, has_end: bool) {
    let chunk = |choice: &Value| format!("data: {}\n\n", json!({ "choices": [choice] }));
    let letters: Vec<char> = text.chars().collect();
    let mut pieces: Vec<String> = letters
        .chunks(5)
        .map(|piece| chunk(&json!({ "delta": { "content": String::from_iter(piece) } })))
        .collect();
    if has_end {
        pieces.push(chunk(&json!({ "delta": {}, "finish_reason": "stop" })));
    }
    page.value(&format!(
        "window.fetch = (fetch => (path, options) => {{
            if (path !== '/status/chat') return fetch(path, options);
            window.fetch = fetch;
            const pieces = {}.map(piece => new TextEncoder().encode(piece));
            return Promise.resolve(new Response(new ReadableStream({{
                start(body) {{ options.signal.addEventListener('abort', () => body.error(options.signal.reason)); }},
                async pull(body) {{
                    await new Promise(done => setTimeout(done));
                    if (pieces.length) body.enqueue(pieces.shift());
                    else if ({has_end}) body.close();
                    else await new Promise(() => 0);
                }},
            }})));
        }})(window.fetch); 0",
        json!(pieces)
    ));
}

#[test]
#[ignore = "more: a browser"]
fn the_chat_streams_answers_keeps_them_over_a_reload_and_forgets_them_for_a_new_one() {
    let test = "the_chat_streams_answers_keeps_them_over_a_reload_and_forgets_them_for_a_new_one";
    // The demo's model may repeat itself to the end of its context.
    let stack = Stack::drafting("limits.max_new_tokens = 150\n");
    let Some(page) = Page::open(test, &url(&stack, "")) else { return stack.stop() };
    page.until("the chat", |text| text.contains("Ask demo-target"));
    take_screenshots(&page, "chat-empty");
    // Every length that the answer has on the page.
    page.value(
        "window.lengths = new Set(); new MutationObserver(() => lengths.add(document.querySelector('.said')?.innerText.length)) \
         .observe(document.getElementById('turns'), { subtree: true, childList: true, characterData: true }); 0",
    );
    ask(&page, &format!("Tell me of the {CANARY}."));
    page.until("an answer with its figures", |text| {
        text.contains("tokens per second") && text.contains(" lane") && text.contains("Retry")
    });
    assert!(page.value("lengths.size").as_u64() > Some(2), "it came as a stream");
    ask(&page, "And of rivers?");
    page.until("the second answer", |text| text.matches("first token after").count() == 2);
    let before = turns(&page);
    page.reload();
    page.until("both answers again", |text| text.matches("first token after").count() == 2);
    assert_eq!(turns(&page), before);
    take_screenshots(&page, "chat-answered");

    page.value("[...document.querySelectorAll('.acts button')].at(-1).click()");
    until_true(&page, "talk.stopping === null && talk.turns.length === 4");
    page.value("document.getElementById('fresh').click()");
    page.until("no conversation", |text| text.contains("Ask demo-target"));
    assert!(!stored(&page).contains(CANARY) && turns(&page).is_empty());
    page.reload();
    page.until("the chat", |text| text.contains("Ask demo-target"));
    assert_eq!(page.value("document.querySelectorAll('#turns > li').length"), 0);
    for name in ["gateway.log", "supervisor.log", "target.log"] {
        let log = std::fs::read_to_string(stack.run_dir().join(name)).expect("a log");
        assert!(!log.contains(CANARY), "{name}");
    }
    check_complaints(&page);
    stack.stop();
}

/// An answer with every form, and with markup that is to stay text.
const FORMS: &str = r#"## Forms

A **strong** word, an *emphasized* one, `code` and [a link](ftp://example.org/a).

1. first
   - inside
2. second

```rust
fn one() -> u32 { 1 } // <b>no markup</b>
```

| name | count |
|---|---:|
| a | 1 |

> quoted

<img src=x onerror="window.isBroken = true"><script>window.isBroken = true</script>"#;

#[test]
#[ignore = "more: a browser"]
fn an_answer_in_markdown_is_made_of_nodes_and_its_markup_stays_text() {
    let test = "an_answer_in_markdown_is_made_of_nodes_and_its_markup_stays_text";
    let stack = Stack::ready("drafter.model = \"\"\nlimits.max_new_tokens = 150\n");
    let Some(page) = Page::open(test, &url(&stack, "")) else { return stack.stop() };
    page.until("the chat", |text| text.contains("Ask demo-target"));
    script(&page, FORMS, true);
    ask(&page, "Show all forms.");
    page.until("the answer", |text| text.contains("Retry"));
    let check = || {
        for (selector, text) in [
            ("h4", "Forms"),
            ("strong", "strong"),
            ("em", "emphasized"),
            ("p code", "code"),
            (".address", "(ftp://example.org/a)"),
            ("ol > li > ul > li", "inside"),
            (".code .top span", "rust"),
            ("pre code", "fn one() -> u32 { 1 } // <b>no markup</b>"),
            ("th.end", "count"),
            ("td", "a"),
            ("blockquote", "quoted"),
        ] {
            let found =
                page.value(&format!("document.querySelector('.said {selector}')?.innerText"));
            assert_eq!(found, text, "{selector}");
        }
        let markup = "document.querySelectorAll('.said :is(img, script, a, b)').length";
        assert_eq!(page.value(markup), 0);
        assert_eq!(page.value("window.isBroken === undefined"), true);
        assert!(turns(&page).contains("<script>window.isBroken = true</script>"));
    };
    check();
    take_screenshots(&page, "chat-forms");
    page.value("document.querySelector('.code button').click()");
    until_true(&page, "document.querySelector('.code button').innerText === 'Copied'");
    page.reload();
    page.until("the answer again", |text| text.contains("Show all forms."));
    check();
    check_complaints(&page);
    stack.stop();
}

#[test]
#[ignore = "more: a browser"]
fn a_stop_keeps_what_was_said_and_a_question_without_an_answer_comes_back() {
    let test = "a_stop_keeps_what_was_said_and_a_question_without_an_answer_comes_back";
    let stack = Stack::ready("drafter.model = \"\"\nlimits.max_new_tokens = 150\n");
    let Some(page) = Page::open(test, &url(&stack, "")) else { return stack.stop() };
    page.until("the chat", |text| text.contains("Ask demo-target"));
    script(&page, "Rivers begin in hills", false);
    ask(&page, "Tell me of rivers.");
    until_true(&page, "document.querySelector('.said')?.innerText === 'Rivers begin in hills'");
    take_screenshots(&page, "chat-running");
    page.value("document.getElementById('stop').click()");
    page.until("the end", |text| text.contains("Stopped.") && text.contains("Retry"));
    assert!(turns(&page).contains("Rivers begin in hills"));

    // The service itself has given no token yet.
    let question = "document.getElementById('question').value";
    signal(stack.pid("target"), Signal::SIGSTOP);
    ask(&page, "And of lakes?");
    stack.wait_status("a request", |status| status["requests"]["active"] == 1);
    page.value("document.getElementById('stop').click()");
    until_true(&page, &format!("{question} === 'And of lakes?'"));
    signal(stack.pid("target"), Signal::SIGCONT);
    stack.wait_status("no request", |status| status["requests"]["active"] == 0);
    assert!(stack.paceline(&["drain"], "").status.success());
    page.value("document.getElementById('send').click()");
    let text = page.until("a refusal", |text| text.contains("No answer: "));
    assert!(text.contains("Try again") && text.contains("Rivers begin in hills"), "{text}");
    assert_eq!(page.value(question), "And of lakes?");
    page.until("the banner", |text| text.contains("Draining"));
    take_screenshots(&page, "chat-refused");
    assert!(stack.paceline(&["drain", "--undo"], "").status.success());
    page.value("document.querySelector('#trouble button').click()");
    page.until("an answer", |text| text.contains("first token after"));
    assert_eq!((page.value(question), page.value("talk.turns.length")), (json!(""), json!(4)));

    page.value("document.getElementById('question').focus()");
    page.type_text("one");
    page.press_enter(true);
    page.type_text("two");
    assert_eq!(page.value(question), "one\ntwo");
    check_complaints(&page);
    stack.stop();
}

#[test]
#[ignore = "more: a browser"]
fn images_are_asked_about_by_file_paste_and_drop_and_are_not_kept() {
    let test = "images_are_asked_about_by_file_paste_and_drop_and_are_not_kept";
    let stack = Stack::ready("target.model = \"demo-vision\"\n");
    let Some(page) = Page::open(test, &url(&stack, "")) else { return stack.stop() };
    page.until("the chat", |text| text.contains("Ask demo-vision"));
    let file = std::fs::read(repository().join("demo/vision/images/large.png")).expect("there");
    let count = "document.querySelectorAll('#pictures img').length";
    page.value(&format!(
        "window.picked = () => {{ const data = new DataTransfer(); data.items.add(new File([Uint8Array.from(\
         atob({:?}), sign => sign.charCodeAt(0))], 'large.png', {{ type: 'image/png' }})); return data; }}; 0",
        base64(&file)
    ));
    for (ways, add) in [
        "(files => { files.files = picked().files; files.dispatchEvent(new Event('change')); })(document.getElementById('files'))",
        "document.getElementById('question').dispatchEvent(new ClipboardEvent('paste', { clipboardData: picked(), cancelable: true }))",
        "document.body.dispatchEvent(new DragEvent('drop', { dataTransfer: picked(), bubbles: true, cancelable: true }))",
    ]
    .into_iter()
    .enumerate()
    {
        page.value(&format!("{add}; 0"));
        until_true(&page, &format!("{count} === {}", ways + 1));
    }
    take_screenshots(&page, "chat-images");
    for _ in 0..2 {
        page.value("document.querySelector('#pictures button').click()");
    }
    assert_eq!(page.value(count), 1);
    ask(&page, "Describe the picture.");
    let text = page.until("the answer", |text| text.contains("first token after"));
    assert!(text.contains("a green circle at the top left"), "{text}");
    assert_eq!(page.value("document.querySelectorAll('.bubble img').length"), 1);
    take_screenshots(&page, "chat-vision");
    page.reload();
    page.until("the note", |text| text.contains("An image is not kept after a reload."));
    assert!(!stored(&page).contains("data:"), "no image is kept");
    check_complaints(&page);
    stack.stop();
}
