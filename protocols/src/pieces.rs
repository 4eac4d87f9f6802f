//! A whole answer as text in pieces. Long lists of an answer, such as its log-probabilities, are
//! made entry by entry while they are written: all entries at once would take ten times their text.

use std::collections::VecDeque;
use std::fmt;
use std::io;

use bytes::Bytes;
use serde::ser::{Serialize, SerializeMap as _, Serializer};
use serde_json::Value;

/// Bytes of a piece. The connection keeps a piece until it is sent.
const PIECE_BYTES: usize = 64 << 10;

/// A whole answer before it is text.
#[derive(Debug, Default)]
pub struct WholeAnswer {
    body: Value,
    lists: Vec<LongList>,
}

/// A list whose entries are made when they are written.
pub struct LongList {
    /// The JSON pointer of the list in the body, which has an empty one there.
    pointer: String,
    length: usize,
    entry: Box<dyn Fn(usize) -> Value + Send>,
}

impl LongList {
    /// A list of `length` entries at this JSON pointer.
    pub fn new(
        pointer: String,
        length: usize,
        entry: impl Fn(usize) -> Value + Send + 'static,
    ) -> Self {
        Self { pointer, length, entry: Box::new(entry) }
    }
}

impl fmt::Debug for LongList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LongList({}, {} entries)", self.pointer, self.length)
    }
}

impl Serialize for LongList {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((0..self.length).map(&self.entry))
    }
}

impl From<Value> for WholeAnswer {
    fn from(body: Value) -> Self {
        Self { body, lists: Vec::new() }
    }
}

impl WholeAnswer {
    /// An answer with long lists.
    pub fn new(body: Value, lists: Vec<LongList>) -> Self {
        Self { body, lists }
    }

    /// Writes the answer.
    pub fn pieces(&self) -> Pieces {
        let mut pieces = Pieces::default();
        // Neither values nor pieces have an error.
        let _ = serde_json::to_writer(&mut pieces, &self.at(&self.body, String::new()));
        pieces
    }

    fn at<'a>(&'a self, value: &'a Value, pointer: String) -> At<'a> {
        At { answer: self, value, pointer }
    }

    /// The answer as a client reads it.
    #[cfg(test)]
    pub fn json(&self) -> Value {
        let mut pieces = self.pieces();
        let text: Vec<u8> = std::iter::from_fn(|| pieces.next()).flatten().collect();
        serde_json::from_slice(&text).expect("JSON")
    }
}

/// A value at this JSON pointer of the body.
struct At<'a> {
    answer: &'a WholeAnswer,
    value: &'a Value,
    pointer: String,
}

impl Serialize for At<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { answer, value, pointer } = self;
        let mut lists = answer.lists.iter();
        if let Some(list) = lists.clone().find(|list| list.pointer == *pointer) {
            return list.serialize(serializer);
        }
        match value {
            value if !lists.any(|list| list.pointer.starts_with(pointer.as_str())) => {
                value.serialize(serializer)
            }
            Value::Object(members) => {
                let mut map = serializer.serialize_map(Some(members.len()))?;
                for (name, value) in members {
                    map.serialize_entry(name, &answer.at(value, format!("{pointer}/{name}")))?;
                }
                map.end()
            }
            Value::Array(entries) => {
                let entries = entries.iter().enumerate();
                let at = |(at, value)| answer.at(value, format!("{pointer}/{at}"));
                serializer.collect_seq(entries.map(at))
            }
            value => value.serialize(serializer),
        }
    }
}

/// A text in pieces. The last one has its bytes in `open` until it is taken.
#[derive(Debug, Default)]
pub struct Pieces {
    pieces: VecDeque<Bytes>,
    open: Vec<u8>,
}

impl Pieces {
    /// Bytes of all pieces.
    pub fn bytes(&self) -> usize {
        self.pieces.iter().map(Bytes::len).sum::<usize>() + self.open.len()
    }
}

impl Iterator for Pieces {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let open = || Some(Bytes::from(std::mem::take(&mut self.open)));
        self.pieces.pop_front().or_else(open).filter(|piece| !piece.is_empty())
    }
}

impl io::Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(PIECE_BYTES - self.open.len());
        self.open.extend_from_slice(&bytes[..taken]);
        if self.open.len() == PIECE_BYTES {
            let full = std::mem::replace(&mut self.open, Vec::with_capacity(PIECE_BYTES));
            self.pieces.push_back(full.into());
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::json;

    use super::*;

    fn entry(at: usize) -> Value {
        json!({"token": format!("é\n{at}"), "logprob": -0.1f32 * at as f32, "top": vec![at; 20]})
    }

    /// A body whose lists are filled, or empty.
    fn body(filled: bool) -> Value {
        let list = |length: usize| match filled {
            true => (0..length).map(entry).collect(),
            false => Value::Array(Vec::new()),
        };
        json!({
            "id": "a", "choices": [
                {"index": 0, "content": list(3_000), "end": null},
                {"index": 1, "content": list(0), "contents": [1]},
            ],
            "choices2": {"content": [2]}, "usage": {"tokens": 7},
        })
    }

    fn lists() -> Vec<LongList> {
        let list =
            |at: usize, length| LongList::new(format!("/choices/{at}/content"), length, entry);
        vec![list(0, 3_000), list(1, 0)]
    }

    #[test]
    fn an_answer_in_pieces_has_the_bytes_of_its_value() {
        let whole = body(true).to_string();
        let mut pieces = WholeAnswer::new(body(false), lists()).pieces();
        assert_eq!(pieces.bytes(), whole.len());
        let mut text = Vec::new();
        for piece in pieces.by_ref() {
            assert!(piece.len() <= PIECE_BYTES);
            text.extend_from_slice(&piece);
        }
        assert!(text.len() > 4 * PIECE_BYTES && text == whole.as_bytes());
        assert_eq!((pieces.bytes(), pieces.next()), (0, None));
    }

    #[test]
    fn an_entry_is_written_before_the_next_is_made() {
        /// Counts the bytes that are written.
        #[derive(Clone, Default)]
        struct Written(Arc<AtomicUsize>);

        impl io::Write for Written {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.fetch_add(bytes.len(), Ordering::Relaxed);
                Ok(bytes.len())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }

        let written = Written::default();
        let seen = written.clone();
        let list = LongList::new("/a".to_owned(), 1_000, move |at| {
            let before: usize = (0..at).map(|at| entry(at).to_string().len() + 1).sum();
            assert!(seen.0.load(Ordering::Relaxed) >= before, "entry {at}");
            entry(at)
        });
        let answer = WholeAnswer::new(json!({"a": []}), vec![list]);
        serde_json::to_writer(written, &answer.at(&answer.body, String::new())).expect("written");
    }
}
