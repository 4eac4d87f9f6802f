//! A headless Chromium that opens a page: it runs the page's script, takes screenshots, and reports
//! what the browser complained about. It is driven over a pipe by Chrome's `DevTools` protocol.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, PipeReader, PipeWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use command_fds::{CommandFdExt as _, FdMapping};
use paceline_system::environment::env_os;
use serde_json::{Value, json};

use crate::{skip, wait};

/// Names under which a Chromium is installed.
const PROGRAMS: &[&str] = &[
    "chromium-headless-shell",
    "chrome-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
];
/// Descriptors on which Chromium reads commands and writes answers (`--remote-debugging-pipe`).
const COMMANDS_FD: i32 = 3;
const ANSWERS_FD: i32 = 4;
/// Longest wait for an answer: as long as for any state.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Messages of the browser that are not read yet.
const MAX_UNREAD: usize = 4_096;

/// The window of a screenshot.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Width in pixels of the page.
    pub width: u32,
    /// Height in pixels of the page.
    pub height: u32,
    /// Whether the page is asked for dark colours.
    pub dark: bool,
}

/// A page in a browser of its own, with a profile of its own.
pub struct Page {
    child: Child,
    commands: RefCell<PipeWriter>,
    answers: Receiver<Value>,
    next_id: Cell<u64>,
    session: Option<String>,
    complaints: RefCell<VecDeque<String>>,
    /// For the message of a test that fails.
    last_text: RefCell<String>,
    _profile: tempfile::TempDir,
}

impl Page {
    /// Opens a page. `None` if the test is to be skipped, because there is no browser here.
    ///
    /// # Panics
    /// There is no browser on CI; it does not start, or is not driven as expected.
    pub fn open(test: &str, url: &str) -> Option<Self> {
        let Some(program) = program() else {
            let names = PROGRAMS[..6].join(", ");
            skip::skipped(test, &format!("no browser was found: expected one of {names}"));
            return None;
        };
        let mut page = Self::start(&program);
        let opened = page.call("Target.createTarget", json!({ "url": "about:blank" }));
        let target = json!({ "targetId": opened["targetId"], "flatten": true });
        let attached = page.call("Target.attachToTarget", target);
        page.session = Some(attached["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Log.enable", "Runtime.enable", "Page.enable"] {
            page.call(domain, json!({}));
        }
        page.call("Page.navigate", json!({ "url": url }));
        Some(page)
    }

    fn start(program: &Path) -> Self {
        let profile = tempfile::tempdir().unwrap();
        let (commands_end, commands) = std::io::pipe().unwrap();
        let (answers, answers_end) = std::io::pipe().unwrap();
        let mut command = Command::new(program);
        // The sandbox needs namespaces that containers do not have. The page is our own.
        command
            .args(["--headless", "--no-sandbox", "--remote-debugging-pipe", "--disable-gpu"])
            .args(["--no-first-run", "--disable-background-networking", "--hide-scrollbars"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mappings = vec![
            FdMapping { parent_fd: commands_end.into(), child_fd: COMMANDS_FD },
            FdMapping { parent_fd: answers_end.into(), child_fd: ANSWERS_FD },
        ];
        command.fd_mappings(mappings).unwrap();
        let child = command.spawn().unwrap();
        // It has the ends of the child.
        drop(command);
        Self {
            child,
            commands: RefCell::new(commands),
            answers: read(answers),
            next_id: Cell::new(1),
            session: None,
            complaints: RefCell::default(),
            last_text: RefCell::default(),
            _profile: profile,
        }
    }

    /// The value of an expression of JavaScript; of a promise its result.
    ///
    /// # Panics
    /// It throws.
    pub fn value(&self, expression: &str) -> Value {
        let parameters =
            json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let answer = self.call("Runtime.evaluate", parameters);
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// The text that a reader of the page finds.
    pub fn text(&self) -> String {
        // While the page is loaded there is no body.
        self.value("document.body?.innerText ?? ''").as_str().unwrap().to_owned()
    }

    /// Waits until the text of the page is as wanted, and returns it.
    ///
    /// # Panics
    /// It does not become so.
    pub fn until(&self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        wait(what, || {
            let text = self.text();
            self.last_text.replace(text.clone());
            wanted(&text).then_some(text)
        })
    }

    /// Types a text into what has the focus.
    pub fn type_text(&self, text: &str) {
        self.call("Input.insertText", json!({ "text": text }));
    }

    /// Presses Enter, with Shift or without.
    pub fn press_enter(&self, shift: bool) {
        let modifiers = if shift { 8 } else { 0 };
        for kind in ["keyDown", "keyUp"] {
            let key = json!({
                "type": kind, "key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13,
                "modifiers": modifiers, "text": if kind == "keyDown" { "\r" } else { "" },
            });
            self.call("Input.dispatchKeyEvent", key);
        }
    }

    /// Loads the page again.
    pub fn reload(&self) {
        self.value("window.isOld = true");
        self.call("Page.reload", json!({}));
        wait("the page again", || (self.value("window.isOld === undefined") == true).then_some(()));
    }

    /// Gives the page this window.
    pub fn resize(&self, window: Window) {
        let Window { width, height, dark } = window;
        let metrics =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", metrics);
        let scheme = if dark { "dark" } else { "light" };
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features }));
        // Two frames: the page draws its chart again when its size has changed.
        let frames = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))";
        self.value(frames);
    }

    /// A screenshot of the window, as PNG.
    pub fn screenshot(&self) -> Vec<u8> {
        let answer = self.call("Page.captureScreenshot", json!({ "format": "png" }));
        STANDARD.decode(answer["data"].as_str().unwrap()).unwrap()
    }

    /// Complaints of the browser: violations of the page's policy, exceptions, messages of the
    /// console. Answers with an error status are none.
    pub fn complaints(&self) -> Vec<String> {
        self.value("0");
        self.complaints.borrow().iter().cloned().collect()
    }

    /// Sends a command and waits for its result.
    fn call(&self, method: &str, parameters: Value) -> Value {
        let id = self.next_id.replace(self.next_id.get() + 1);
        let mut message = json!({ "id": id, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.commands.borrow_mut().write_all(&bytes).unwrap();
        loop {
            let answer = self.answers.recv_timeout(ANSWER_TIMEOUT);
            let answer = answer.unwrap_or_else(|error| panic!("{method}: no answer: {error}"));
            if answer["id"] == id {
                assert!(answer.get("error").is_none(), "{method}: {answer}");
                return answer["result"].clone();
            }
            self.take(&answer);
        }
    }

    /// Keeps an event that is a complaint.
    fn take(&self, event: &Value) {
        let parameters = &event["params"];
        let complaint = match event["method"].as_str() {
            Some("Log.entryAdded") if parameters["entry"]["source"] != "network" => {
                &parameters["entry"]
            }
            Some("Runtime.exceptionThrown") => &parameters["exceptionDetails"],
            Some("Runtime.consoleAPICalled") => parameters,
            _ => return,
        };
        self.complaints.borrow_mut().push_back(complaint.to_string());
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = writeln!(std::io::stderr(), "the page had:\n{}", self.last_text.borrow());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The messages that come over a pipe, each ended by a zero byte.
fn read(pipe: PipeReader) -> Receiver<Value> {
    let (sender, receiver) = sync_channel(MAX_UNREAD);
    std::thread::spawn(move || {
        for message in BufReader::new(pipe).split(0).map_while(Result::ok) {
            let message = serde_json::from_slice(&message).unwrap();
            if sender.send(message).is_err() {
                return;
            }
        }
    });
    receiver
}

/// A browser of this machine.
fn program() -> Option<PathBuf> {
    let path = env_os("PATH").unwrap_or_default();
    let dirs: Vec<PathBuf> = std::env::split_paths(&path).collect();
    // An absolute name stands for itself in every directory.
    let places = PROGRAMS.iter().flat_map(|name| dirs.iter().map(move |dir| dir.join(name)));
    places.into_iter().find(|place| place.is_file())
}
