//! The status page of a whole service in a browser. The screenshots of each run are left in
//! `status-page/` beside the programs.

use std::path::PathBuf;

use nix::sys::signal::Signal;
use paceline_process::keys::KeyLine;
use paceline_proto::v1::RouteWish;
use paceline_tests::browser::{Page, Window};
use paceline_tests::prompts::some_of_each;
use paceline_tests::{Stack, chat, programs, signal, wait};

use std::os::unix::fs::PermissionsExt as _;

const KEY: &str = "pl_page_0123456789abcdef";
/// A word of a prompt.
const CANARY: &str = "quetzalcoatlus";

const WINDOWS: [(&str, Window); 4] = [
    ("desktop-light", Window { width: 1200, height: 900, dark: false }),
    ("desktop-dark", Window { width: 1200, height: 900, dark: true }),
    ("phone-light", Window { width: 390, height: 844, dark: false }),
    ("phone-dark", Window { width: 390, height: 844, dark: true }),
];

fn url(stack: &Stack) -> String {
    format!("http://{}/", stack.http_address())
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
        let fits = "document.documentElement.scrollWidth <= innerWidth";
        assert_eq!(page.value(fits), true, "{name} is wider than {window_name}");
        let columns = "getComputedStyle(document.querySelector('main')).gridTemplateColumns";
        let columns = page.value(columns).as_str().expect("text").split(' ').count();
        assert_eq!(columns == 1, window.width < 700, "{columns} columns in {window_name}");
        let screenshot = page.screenshot();
        assert_eq!(size(&screenshot), (window.width, window.height));
        std::fs::write(dir.join(format!("{name}-{window_name}.png")), screenshot).expect("written");
    }
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
    let Some(page) = Page::open(test, &url(&stack)) else { return stack.stop() };
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
    let Some(page) = Page::open(test, &url(&stack)) else { return stack.stop() };
    let text = page.until("the figures", |text| text.contains("Every request decodes plainly."));
    assert!(text.contains("absent") && !text.contains("tokens per cycle"), "{text}");
    take_screenshots(&page, "plain");
    check_complaints(&page);
    stack.stop();
}

#[test]
#[ignore = "more: a browser"]
fn with_keys_the_page_asks_for_one_and_no_script_finds_the_session() {
    let test = "with_keys_the_page_asks_for_one_and_no_script_finds_the_session";
    let mut stack = Stack::new("");
    let file = stack.path("keys");
    let line = KeyLine::of("page", KEY).expect("fine");
    std::fs::write(&file, format!("{line}\n")).expect("written");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("ours");
    stack.set(&format!("gateway.api_keys_file = {file:?}\n"));
    stack.serve();
    wait("the HTTP address", || stack.http_get("/").is_ok().then_some(()));
    stack.wait_status("the target", |status| status["target"]["state"] == "ready");
    let Some(page) = Page::open(test, &url(&stack)) else { return stack.stop() };
    let text = page.until("the form", |text| text.contains("Show the status"));
    assert!(!text.contains("Processes") && !text.contains("demo-target"), "{text}");
    take_screenshots(&page, "door");
    let enter = |key: &str| {
        page.value(&format!("document.getElementById('key').value = {key:?}; 0"));
        page.value("document.querySelector('#door button').click()");
    };
    enter("pl_page_wrong_0123456789");
    page.until("a refusal", |text| text.contains("This key is not known here."));
    enter(KEY);
    let text = page.until("the figures", |text| text.contains("Processes"));
    assert!(text.contains("Sign out") && !text.contains("Show the status"), "{text}");
    assert_eq!(page.value("document.cookie"), "");
    assert_eq!(page.value("document.getElementById('key').value"), "");
    page.value("document.getElementById('leave').click()");
    page.until("the form again", |text| text.contains("Show the status"));
    assert_eq!(page.value("fetch('/status').then(answer => answer.status)"), 401);
    check_complaints(&page);
    stack.stop();
}
