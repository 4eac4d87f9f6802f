//! Places in one half of the segment: contiguous, handed out in order, freed in order by
//! acknowledged number. Pure.
//!
//! ```text
//!   0 ········ front ▓▓▓▓▓▓▓▓▓ head ············ capacity     in one piece: room behind head, else (tail skipped) before front
//!   0 ▓▓▓▓▓▓▓▓ head ········· front ▓▓▓▓▓▓▓░░░░░ capacity     wrapped: room between head and front
//! ```

use std::collections::VecDeque;

/// Tensors start at multiples of this many bytes.
pub const ALIGN: u64 = 64;

/// An acknowledgement of a tensor that is not in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("tensor {number} was acknowledged, expected one after {oldest} and up to {last}")]
pub struct RingError {
    /// The acknowledged number.
    pub number: u64,
    /// Newest number that was acknowledged before.
    pub oldest: u64,
    /// Newest number that was handed out.
    pub last: u64,
}

/// Places that were handed out and are not acknowledged yet.
#[derive(Debug)]
pub struct Ring {
    capacity: u64,
    head: u64,
    /// Start of each place in flight, oldest first.
    starts: VecDeque<u64>,
    /// Number of the last place handed out.
    last: u64,
}

impl Ring {
    /// An empty ring of `capacity` bytes.
    pub fn new(capacity: u64) -> Self {
        Self { capacity, head: 0, starts: VecDeque::new(), last: 0 }
    }

    /// Size of the ring in bytes: nothing longer ever fits.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Longest place that could be handed out now.
    pub fn room(&self) -> u64 {
        match self.starts.front() {
            None => self.capacity,
            Some(&front) if front >= self.head => front - self.head,
            Some(&front) => front.max(self.capacity - self.head),
        }
    }

    /// A place of `length` bytes: its number and offset. `None`: no room until more is
    /// acknowledged.
    pub fn put(&mut self, length: u64) -> Option<(u64, u64)> {
        let length = length.max(1).checked_next_multiple_of(ALIGN)?;
        let (start, end) = match self.starts.front() {
            None => (0, self.capacity),
            Some(&front) if front >= self.head => (self.head, front),
            Some(_) if self.capacity - self.head >= length => (self.head, self.capacity),
            Some(&front) => (0, front),
        };
        if length > end - start {
            return None;
        }
        self.head = start + length;
        self.starts.push_back(start);
        self.last += 1;
        Some((self.last, start))
    }

    /// Frees every place up to `number`.
    ///
    /// # Errors
    /// It was never handed out, or is free already.
    pub fn free(&mut self, number: u64) -> Result<(), RingError> {
        let oldest = self.last - self.starts.len() as u64;
        if number <= oldest || number > self.last {
            return Err(RingError { number, oldest, last: self.last });
        }
        self.starts.drain(..(number - oldest) as usize);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_tail_is_skipped_and_a_full_ring_says_so() {
        let mut ring = Ring::new(256);
        assert_eq!(ring.put(257), None);
        assert_eq!(ring.put(100), Some((1, 0)));
        assert_eq!(ring.put(64), Some((2, 128)));
        assert_eq!(ring.put(65), None, "64 behind, nothing before");
        ring.free(1).expect("in flight");
        assert_eq!(ring.put(65), Some((3, 0)), "the tail is skipped");
        assert_eq!(ring.room(), 0);
        assert_eq!(ring.put(1), None, "full");
        ring.free(2).expect("in flight");
        assert_eq!(ring.put(64), Some((4, 128)));
        ring.free(4).expect("both");
        assert_eq!(ring.put(256), Some((5, 0)), "an empty ring starts over");
    }

    #[test]
    fn acknowledgements_go_forward_and_not_beyond_what_was_sent() {
        let mut ring = Ring::new(1024);
        for _ in 0..3 {
            ring.put(64).expect("room");
        }
        ring.free(4).expect_err("never sent");
        ring.free(2).expect("sent");
        for number in [0, 1, 2, u64::MAX] {
            ring.free(number).expect_err("backwards or never sent");
        }
        ring.free(3).expect("sent");
    }

    proptest! {
        /// Against a map of bytes: places never overlap, lie aligned and inside, and there is room
        /// whenever `room` says so.
        #[test]
        fn places_never_overlap(units in 1u64..12, steps in prop::collection::vec((any::<bool>(), 0u64..900, 1u64..5), 1..200)) {
            let mut ring = Ring::new(units * ALIGN);
            let mut flying: VecDeque<(u64, u64, u64)> = VecDeque::new();
            let mut next = 1;
            for (puts, length, count) in steps {
                if puts {
                    let (room, fits) = (ring.room(), length.max(1).next_multiple_of(ALIGN));
                    match ring.put(length) {
                        Some((number, start)) => {
                            prop_assert!(fits <= room);
                            prop_assert_eq!(number, next);
                            next += 1;
                            prop_assert!(start % ALIGN == 0 && start + fits <= units * ALIGN);
                            for (_, from, to) in &flying {
                                prop_assert!(start + fits <= *from || start >= *to, "{}..{} and {}..{}", start, start + fits, from, to);
                            }
                            flying.push_back((number, start, start + fits));
                        }
                        None => prop_assert!(fits > room),
                    }
                } else if !flying.is_empty() {
                    let at = (count as usize).min(flying.len()) - 1;
                    prop_assert!(ring.free(flying[at].0).is_ok());
                    flying.drain(..=at);
                    if flying.is_empty() {
                        prop_assert_eq!(ring.room(), units * ALIGN);
                    }
                }
            }
        }
    }
}
