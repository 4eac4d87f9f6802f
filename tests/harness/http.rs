//! Plain requests to an HTTP address, of a stack or of a program before it, each on a connection of
//! its own.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

use crate::Stack;

/// An answer to a request.
#[derive(Debug)]
pub struct HttpAnswer {
    /// Status line and headers.
    pub head: String,
    /// The body as it was sent.
    pub body: String,
}

impl HttpAnswer {
    /// The status code.
    ///
    /// # Panics
    /// There is none.
    pub fn status(&self) -> u16 {
        self.head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap()
    }
}

impl Stack {
    /// A documented line with curl for the address of this stack; a proxy of the caller is left out.
    pub fn here(&self, line: &str) -> String {
        format!("no_proxy=127.0.0.1 {}", line.replace("127.0.0.1:8061", &self.http_address()))
    }

    /// Gets `path` of the HTTP address.
    ///
    /// # Errors
    /// The address refuses connections, or no answer comes in time.
    pub fn http_get(&self, path: &str) -> io::Result<HttpAnswer> {
        read_answer(self.http_send("GET", path, "", "")?)
    }

    /// Posts a body to `path` of the HTTP address. `headers` are whole lines.
    ///
    /// # Errors
    /// As [`Stack::http_get`].
    pub fn http_post(&self, path: &str, headers: &str, body: &str) -> io::Result<HttpAnswer> {
        read_answer(self.http_send("POST", path, headers, body)?)
    }

    /// Posts the beginning of a body of `length` bytes.
    ///
    /// # Errors
    /// The address refuses connections.
    pub fn http_begin(
        &self,
        path: &str,
        headers: &str,
        length: usize,
        beginning: &str,
    ) -> io::Result<TcpStream> {
        let host = self.http_address();
        let mut stream = TcpStream::connect(&host)?;
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {length}\r\n{headers}\r\n"
        );
        stream.write_all((head + beginning).as_bytes())?;
        Ok(stream)
    }

    /// Sends a request to the HTTP address; its answer is still to be read.
    ///
    /// # Errors
    /// The address refuses connections.
    pub fn http_send(
        &self,
        method: &str,
        path: &str,
        headers: &str,
        body: &str,
    ) -> io::Result<TcpStream> {
        send(&self.http_address(), method, path, headers, body)
    }

    /// Posts JSON to `path` of the HTTP address. The answer, a stream of events as well, is read to
    /// its end: version 1.0 has no chunks, and a stream ends with its connection.
    ///
    /// # Errors
    /// As [`Stack::http_get`].
    pub fn http_json(&self, path: &str, body: &Value) -> io::Result<HttpAnswer> {
        json(&self.http_address(), path, body)
    }
}

/// Sends a request to `host:port` with a body and whole header lines, and reads its answer.
///
/// # Errors
/// The address refuses connections, or no answer comes in time.
pub fn ask(host: &str, method: &str, path: &str, body: &str) -> io::Result<HttpAnswer> {
    read_answer(send(host, method, path, "content-type: application/json\r\n", body)?)
}

/// Sends a request to `host:port`; its answer is still to be read. `headers` are whole lines.
fn send(host: &str, method: &str, path: &str, headers: &str, body: &str) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(host)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n"
    );
    stream.write_all((head + body).as_bytes())?;
    Ok(stream)
}

/// Posts JSON to `path` of `host:port`. The answer, a stream of events as well, is read to its end:
/// version 1.0 has no chunks, and a stream ends with its connection.
///
/// # Errors
/// The address refuses connections, or a minute passes without a byte.
pub fn json(host: &str, path: &str, body: &Value) -> io::Result<HttpAnswer> {
    read_answer(post(host, path, body)?)
}

/// Posts JSON to `path` of `host:port` and reads the head of the answer. Its events come as they
/// are sent. Dropping them hangs up.
///
/// # Errors
/// Those of [`json`].
pub fn events(host: &str, path: &str, body: &Value) -> io::Result<Events> {
    let mut lines = BufReader::new(post(host, path, body)?);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if lines.read_line(&mut head)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(Events { head, lines })
}

/// The server-sent events of an answer.
#[derive(Debug)]
pub struct Events {
    /// Status line and headers.
    pub head: String,
    lines: BufReader<TcpStream>,
}

impl Iterator for Events {
    type Item = io::Result<String>;

    /// The data of the next event, until the connection ends.
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let mut line = String::new();
            match self.lines.read_line(&mut line) {
                Ok(0) => return None,
                Ok(_) => {}
                Err(error) => return Some(Err(error)),
            }
            if let Some(data) = line.strip_prefix("data:") {
                return Some(Ok(data.trim().to_owned()));
            }
        }
    }
}

fn post(host: &str, path: &str, body: &Value) -> io::Result<TcpStream> {
    let body = body.to_string();
    let mut stream = TcpStream::connect(host)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.0\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all((head + &body).as_bytes())?;
    Ok(stream)
}

fn read_answer(mut stream: TcpStream) -> io::Result<HttpAnswer> {
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok(HttpAnswer { head: head.to_owned(), body: body.to_owned() })
}
