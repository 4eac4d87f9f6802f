//! Plain requests to the HTTP address of a stack, each on a connection of its own.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

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
    /// Gets `path` of the HTTP address.
    ///
    /// # Errors
    /// The address refuses connections, or no answer comes in time.
    pub fn http_get(&self, path: &str) -> io::Result<HttpAnswer> {
        let mut stream = TcpStream::connect(self.http_address())?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        let host = self.http_address();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let (head, body) = text.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok(HttpAnswer { head: head.to_owned(), body: body.to_owned() })
    }
}
