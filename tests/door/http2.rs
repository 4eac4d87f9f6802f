//! HTTP/2 written by hand: for clients that no library would let be.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

/// The first bytes of a client.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A frame of HTTP/2 (RFC 9113, section 4.1).
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Headers of a request, as literals without indexing (RFC 7541, section 6.2.2).
pub fn headers(path: &str) -> Vec<u8> {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    let text = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
    fields.iter().flat_map(|(name, value)| [vec![0], text(name), text(value)].concat()).collect()
}

/// A connection that has spoken HTTP/2 and asks for nothing.
pub fn connect(address: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("connects");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a bound");
    stream.write_all(&[PREFACE, &frame(4, 0, 0, &[])].concat()).expect("written");
    stream
}

/// Sends these frames and waits until the service has read them.
pub fn send(stream: &mut TcpStream, frames: &[u8]) {
    let ping = frame(6, 0, 0, &[7; 8]);
    stream.write_all(&[frames, &ping].concat()).expect("written");
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).expect("a frame within 30 s");
        let [a, b, c, kind, flags, ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        stream.read_exact(&mut payload).expect("its payload");
        if (kind, flags, &payload[..]) == (6, 1, &[7; 8][..]) {
            return;
        }
    }
}
