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
        // Another layout has what has the focus elsewhere.
        page.value("document.querySelector(':focus')?.scrollIntoView({ block: 'center' })");
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

/// Presses the button of an order, once it is there and enabled, and waits for the page's question.
fn press(page: &Page, order: &str, process: &str) {
    let button = format!("document.querySelector('[data-order={order}][data-process={process}]')");
    wait(&format!("the button {order} of the {process}"), || {
        (page.value(&format!("{button}?.disabled === false")) == true).then_some(())
    });
    page.value(&format!("{button}.focus(); {button}.click()"));
    assert_eq!(page.value("document.getElementById('order').open"), true, "{order} {process}");
}

/// Gives an order by its button, with this text in the field for the drafter; returns when the page
/// shows how it ended.
fn give(page: &Page, order: &str, process: &str, model: &str, end: &str) -> String {
    press(page, order, process);
    page.value(&format!("document.getElementById('order-model').value = {model:?}; 0"));
    page.value("document.getElementById('order-go').click()");
    page.until(&format!("{order} {process}: {end}"), |text| text.contains(end))
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
    let stack = with_key("");
    let Some(page) = Page::open(test, &url(&stack)) else { return stack.stop() };
    let text = page.until("the form", |text| text.contains("Show the status"));
    assert!(!text.contains("Processes") && !text.contains("demo-target"), "{text}");
    take_screenshots(&page, "door");
    enter(&page, "pl_page_wrong_0123456789");
    page.until("a refusal", |text| text.contains("This key is not known here."));
    enter(&page, KEY);
    let text = page.until("the figures", |text| text.contains("Processes"));
    assert!(text.contains("Sign out") && !text.contains("Show the status"), "{text}");
    // No key is listed in gateway.operators.
    assert!(text.contains("no key may give orders by this page"), "{text}");
    assert_eq!(page.value("document.querySelectorAll('[data-order]').length"), 0);
    assert_eq!(page.value("document.cookie"), "");
    assert_eq!(page.value("document.getElementById('key').value"), "");
    page.value("document.getElementById('leave').click()");
    page.until("the form again", |text| text.contains("Show the status"));
    assert_eq!(page.value("fetch('/status').then(answer => answer.status)"), 401);
    check_complaints(&page);
    stack.stop();
}

#[test]
#[ignore = "more: a browser"]
// Longer than 60 lines: one service, which takes seconds to start, gets every order of the page.
fn each_button_gives_its_order_and_the_page_shows_how_it_ended() {
    let test = "each_button_gives_its_order_and_the_page_shows_how_it_ended";
    let stack = Stack::drafting("");
    let Some(page) = Page::open(test, &url(&stack)) else { return stack.stop() };
    page.until("the processes", |text| text.contains("Restarts") && text.contains("Serving"));
    take_screenshots(&page, "orders");

    // The question has the focus, its field where it has one, and what is cancelled is no order.
    let target = stack.pid("target");
    press(&page, "restart", "target");
    assert_eq!(page.value("document.activeElement.id"), "order-cancel");
    page.value("document.activeElement.click()");
    assert_eq!(page.value("document.getElementById('order').open"), false);
    assert_eq!(page.value("document.activeElement.dataset.process"), "target", "focus returns");

    let first = stack.pid("drafter");
    give(&page, "restart", "drafter", "", "Restart the drafter: done");
    let second = stack.pid("drafter");
    assert_ne!(first, second);
    press(&page, "drafter_swap", "drafter");
    take_screenshots(&page, "question");
    assert_eq!(page.value("document.activeElement.id"), "order-model");
    page.value("document.getElementById('order-cancel').click()");
    let text = give(
        &page,
        "drafter_swap",
        "drafter",
        "/nowhere/d",
        "Swap the drafter (/nowhere/d): failed",
    );
    assert!(text.contains("expected a model directory, found nothing at /nowhere/d"), "{text}");
    assert_eq!(stack.pid("drafter"), second, "the one that ran stays");
    take_screenshots(&page, "failed");
    give(&page, "drafter_swap", "drafter", "", "Swap the drafter: done");
    stack.wait_status("the next drafter", |status| {
        status["drafter"]["state"] == "ready" && status["drafter"]["pid"] != second
    });
    give(&page, "drafter_stop", "drafter", "", "Stop the drafter: done");
    stack.wait_status("no drafter", |status| status["drafter"]["state"] == "stopped");
    give(&page, "drafter_start", "drafter", "", "Start the drafter: done");
    stack.wait_status("a drafter", |status| status["drafter"]["state"] == "ready");

    give(&page, "drain", "service", "", "Drain the service: done");
    page.until("a drained service", |text| text.contains("Draining"));
    assert_eq!(stack.http_get("/health").expect("answered").status(), 503);
    give(&page, "undrain", "service", "", "Take requests again: done");
    page.until("a service", |text| text.contains("Serving") && !text.contains("Not serving"));

    give(&page, "restart", "target", "", "Restart the target: done");
    assert_ne!(stack.pid("target"), target);
    let term = stack.status().expect("a status")["term"].as_u64().expect("a term");
    give(&page, "restart", "supervisor", "", "Restart the supervisor: done");
    assert_eq!(stack.status().expect("a status")["term"].as_u64(), Some(term + 1));

    // Every text of the banner and of the state, from here on.
    page.value(
        "window.shown = []; new MutationObserver(() => shown.push(document.querySelector('header').innerText, \
         document.getElementById('banner').innerText)).observe(document.body, { subtree: true, childList: true }); 0",
    );
    let gateway = stack.pid("gateway");
    give(&page, "restart", "gateway", "", "Restart the gateway: done");
    assert_ne!(stack.pid("gateway"), gateway);
    let shown = page.value("shown.join(' ')");
    let shown = shown.as_str().expect("text");
    assert!(!shown.contains("does not answer") && !shown.contains("No answer"), "{shown}");
    // The session ended with the gateway, and the next order begins one.
    give(&page, "restart", "drafter", "", "Restart the drafter: done");
    let text = page.until("the orders as events", |text| text.contains("by the status page"));
    assert!(text.contains("an operator orders it by the status page"), "{text}");
    check_complaints(&page);
    stack.stop();
}

#[test]
#[ignore = "more: a browser"]
fn a_listed_key_gives_orders_and_the_page_asks_for_it_again_after_a_restart_of_the_gateway() {
    let test =
        "a_listed_key_gives_orders_and_the_page_asks_for_it_again_after_a_restart_of_the_gateway";
    let stack = with_key("gateway.operators = [\"page\"]\ndrafter.model = \"\"\n");
    let Some(page) = Page::open(test, &url(&stack)) else { return stack.stop() };
    page.until("the form", |text| text.contains("Show the status"));
    enter(&page, KEY);
    give(&page, "restart", "target", "", "Restart the target: done");
    give(&page, "restart", "gateway", "", "The gateway was restarted, as ordered.");
    enter(&page, KEY);
    let text = page.until("the figures", |text| text.contains("by the status page (key page)"));
    assert!(!text.contains("Show the status"), "{text}");
    check_complaints(&page);
    stack.stop();
}
