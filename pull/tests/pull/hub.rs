//! A hub that a test runs: a listener on this machine, and answers that the test scripts.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use sha1::Sha1;
use sha2::{Digest as _, Sha256};

/// The commit of every model of this hub.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Request {
    pub path: String,
    pub headers: BTreeMap<String, String>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// First byte that is asked for.
    pub fn begin(&self) -> usize {
        let range = self.header("range").and_then(|range| range.strip_prefix("bytes="));
        range.and_then(|range| range.trim_end_matches('-').parse().ok()).unwrap_or(0)
    }
}

/// An answer.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// The connection is closed after this number of bytes of the body.
    pub cut: Option<usize>,
}

impl Answer {
    pub fn ok(body: impl Into<Vec<u8>>) -> Self {
        Self { status: 200, body: body.into(), ..Self::default() }
    }

    pub fn status(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn redirect(place: &str) -> Self {
        Self::status(302).with("location", place)
    }

    /// Answer of a server that knows ranges.
    pub fn file(content: &[u8], request: &Request) -> Self {
        let begin = request.begin();
        if begin == 0 || begin > content.len() {
            return Self::ok(content);
        }
        let range = format!("bytes {begin}-{}/{}", content.len() - 1, content.len());
        Self { status: 206, body: content[begin..].to_vec(), ..Self::default() }
            .with("content-range", &range)
    }

    pub fn cut(mut self, bytes: usize) -> Self {
        self.cut = Some(bytes);
        self
    }
}

type Script = dyn Fn(&Request) -> Answer + Send + Sync;

/// The hub. It serves until the test ends.
pub struct Hub {
    pub address: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Hub {
    pub fn start(script: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound").to_string();
        let requests = Arc::new(Mutex::new(vec![]));
        let (script, seen): (Arc<Script>, _) = (Arc::new(script), requests.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (script, seen) = (script.clone(), seen.clone());
                // A client that goes away early is a part of some tests.
                std::thread::spawn(move || drop(serve(&stream, &*script, &seen)));
            }
        });
        Self { address, requests }
    }

    /// A hub with these files and no surprises.
    pub fn of(model: Model) -> Self {
        Self::start(move |request| model.answer(request))
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().expect("whole").clone()
    }

    /// The requests for this file.
    pub fn requests_of(&self, name: &str) -> Vec<Request> {
        let end = format!("/{name}");
        self.requests().into_iter().filter(|request| request.path.ends_with(&end)).collect()
    }
}

fn serve(stream: &TcpStream, script: &Script, seen: &Mutex<Vec<Request>>) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let first = lines.next().unwrap_or_default();
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let headers = lines.take_while(|line| !line.is_empty()).filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_ascii_lowercase(), value.trim().to_owned()))
    });
    let request = Request { path, headers: headers.collect() };
    seen.lock().expect("whole").push(request.clone());
    let Answer { status, headers, body, cut } = script(&request);
    let mut head = format!("HTTP/1.1 {status} x\r\nconnection: close\r\n");
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += &format!("content-length: {}\r\n\r\n", body.len());
    let mut stream = stream;
    stream.write_all(head.as_bytes())?;
    stream.write_all(&body[..cut.unwrap_or(body.len()).min(body.len())])
}

/// Files of `org/name`.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub files: BTreeMap<String, Vec<u8>>,
    /// Sizes that the description gives instead of the right ones.
    pub sizes: BTreeMap<String, u64>,
    /// Digests that the description gives instead of the right ones.
    pub digests: BTreeMap<String, String>,
    /// Files without a digest in the description.
    pub undigested: BTreeSet<String>,
}

impl Model {
    /// A configuration, a tokenizer and weights in one file, with things that nobody needs.
    pub fn small() -> Self {
        let weights: Vec<u8> = (0..300_000u32).map(|value| (value % 251) as u8).collect();
        let mut model = Self::default();
        for name in ["README.md", "pytorch_model.bin", "consolidated.safetensors", ".gitattributes"]
        {
            model.files.insert(name.to_owned(), b"nobody needs it".to_vec());
        }
        model.files.insert("config.json".to_owned(), b"{\"model_type\":\"qwen3\"}".to_vec());
        model.files.insert("tokenizer.json".to_owned(), b"{}".to_vec());
        model.files.insert("model.safetensors".to_owned(), weights);
        model
    }

    /// Weights in shards, one of them in a folder.
    pub fn sharded() -> Self {
        let mut model = Self::small();
        model.files.remove("model.safetensors");
        let index = br#"{"weight_map":{"a":"m-1.safetensors","b":"mtp/m-2.safetensors"}}"#;
        model.files.insert("model.safetensors.index.json".to_owned(), index.to_vec());
        for name in ["m-1.safetensors", "mtp/m-2.safetensors", "mtp/other.safetensors"] {
            model.files.insert(name.to_owned(), name.repeat(1_000).into_bytes());
        }
        model
    }

    pub fn weights(&self) -> &[u8] {
        &self.files["model.safetensors"]
    }

    pub fn answer(&self, request: &Request) -> Answer {
        if request.path.starts_with("/api/models/org/name/revision/") {
            return Answer::ok(self.description());
        }
        let prefix = format!("/org/name/resolve/{COMMIT}/");
        match request.path.strip_prefix(&prefix).and_then(|name| self.files.get(name)) {
            Some(content) => Answer::file(content, request),
            None => Answer::status(404).with("x-error-code", "EntryNotFound"),
        }
    }

    /// Answer of the API.
    pub fn description(&self) -> String {
        let hex =
            |bytes: &[u8]| -> String { bytes.iter().map(|byte| format!("{byte:02x}")).collect() };
        let files = self.files.iter().map(|(name, content)| {
            let size = self.sizes.get(name).copied().unwrap_or(content.len() as u64);
            let given = self.digests.get(name).cloned();
            if self.undigested.contains(name) {
                return format!(r#"{{"rfilename":{name:?},"size":{size}}}"#);
            }
            if name.ends_with(".safetensors") || name.ends_with(".gguf") {
                let sha = given.unwrap_or_else(|| hex(&Sha256::digest(content)));
                return format!(
                    r#"{{"rfilename":{name:?},"size":{size},"blobId":"{COMMIT}","lfs":{{"sha256":"{sha}","size":{size}}}}}"#
                );
            }
            let blob = Sha1::new().chain_update(format!("blob {}\0", content.len()));
            let blob = given.unwrap_or_else(|| hex(&blob.chain_update(content).finalize()));
            format!(r#"{{"rfilename":{name:?},"size":{size},"blobId":"{blob}"}}"#)
        });
        let files: Vec<String> = files.collect();
        format!(r#"{{"sha":"{COMMIT}","siblings":[{}]}}"#, files.join(","))
    }
}
