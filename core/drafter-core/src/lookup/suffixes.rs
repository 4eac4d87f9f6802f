//! The longest suffix of a text that occurred in it before: a suffix automaton that grows by one
//! token at a time.
//!
//! A state stands for all substrings that end at the same places. Its link leads to the state of
//! their longest suffix that also ends elsewhere, so the state that the newest state links to is
//! the longest suffix of the text that occurred before. A text of n tokens has at most 2n states
//! and 3n edges. No edge is ever removed, so all tokens together cost O(n), and one token O(1) on
//! average (Blumer et al. 1985).

use std::collections::HashMap;

/// An index of no state or edge.
const NONE: u32 = u32::MAX;
const ROOT: u32 = 0;

/// States whose most recent occurrence is brought up to date with each token. A text in which more
/// suffixes recur, such as one token repeated, keeps an older occurrence of the shorter ones; these
/// are proposed from only if no longer one recurs.
const RECENT_STATES: usize = 32;

/// An earlier occurrence of the text's end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Occurrence {
    /// Tokens that agree; 0 if the last token occurred nowhere else.
    pub(super) length: u32,
    /// Place after the occurrence's last token.
    pub(super) end: u32,
}

#[derive(Clone, Copy, Debug)]
struct State {
    /// Tokens of its longest substring.
    length: u32,
    link: u32,
    /// Place after its most recent occurrence.
    end: u32,
    /// Newest edge of the state; the others follow in a list.
    edges: u32,
}

#[derive(Clone, Copy, Debug)]
struct Edge {
    token: u32,
    to: u32,
    /// The next edge of the same state.
    next: u32,
}

/// All substrings of a text.
#[derive(Debug)]
pub(super) struct Suffixes {
    states: Vec<State>,
    edges: Vec<Edge>,
    /// Edges by state and token.
    index: HashMap<(u32, u32), u32>,
    /// State of the whole text.
    last: u32,
}

impl Default for Suffixes {
    fn default() -> Self {
        let root = State { length: 0, link: NONE, end: 0, edges: NONE };
        Self { states: vec![root], edges: vec![], index: HashMap::new(), last: ROOT }
    }
}

impl Suffixes {
    /// Appends a token. Returns the longest earlier occurrence of the text's end, of several the
    /// most recent one.
    pub(super) fn push(&mut self, token: u32) -> Occurrence {
        let length = self.states[self.last as usize].length + 1;
        let newest = self.add_state(State { length, link: ROOT, end: length, edges: NONE });
        let mut from = self.last;
        while from != NONE && !self.index.contains_key(&(from, token)) {
            self.add_edge(from, token, newest);
            from = self.states[from as usize].link;
        }
        if from != NONE {
            self.states[newest as usize].link = self.longest_before(from, token);
        }
        self.last = newest;
        let found = self.states[self.states[newest as usize].link as usize];
        self.mark_recent(newest, length);
        Occurrence { length: found.length, end: found.end }
    }

    /// The state of the substring that `token` makes of `from`'s longest one. It is split from a
    /// state with longer substrings if need be.
    fn longest_before(&mut self, from: u32, token: u32) -> u32 {
        let to = self.edges[self.index[&(from, token)] as usize].to;
        let length = self.states[from as usize].length + 1;
        let whole = self.states[to as usize];
        if whole.length == length {
            return to;
        }
        let part = self.add_state(State { length, edges: NONE, ..whole });
        let mut edge = whole.edges;
        while edge != NONE {
            let Edge { token, to, next } = self.edges[edge as usize];
            self.add_edge(part, token, to);
            edge = next;
        }
        let mut from = from;
        while from != NONE {
            let Some(edge) = self.index.get(&(from, token)) else { break };
            let edge = &mut self.edges[*edge as usize];
            if edge.to != to {
                break;
            }
            edge.to = part;
            from = self.states[from as usize].link;
        }
        self.states[to as usize].link = part;
        part
    }

    /// All suffixes of the text occur at its end now.
    fn mark_recent(&mut self, newest: u32, end: u32) {
        let mut state = self.states[newest as usize].link;
        for _ in 0..RECENT_STATES {
            if state == ROOT {
                break;
            }
            self.states[state as usize].end = end;
            state = self.states[state as usize].link;
        }
    }

    fn add_state(&mut self, state: State) -> u32 {
        self.states.push(state);
        self.states.len() as u32 - 1
    }

    fn add_edge(&mut self, from: u32, token: u32, to: u32) {
        let next = self.states[from as usize].edges;
        let edge = self.edges.len() as u32;
        self.edges.push(Edge { token, to, next });
        self.states[from as usize].edges = edge;
        self.index.insert((from, token), edge);
    }

    /// States and edges.
    pub(super) fn size(&self) -> (usize, usize) {
        (self.states.len(), self.edges.len())
    }

    /// Bytes that they take. An entry of the index has a key, a value and a control byte, and one
    /// place in eight is free.
    pub(super) fn bytes(&self) -> u64 {
        let entry = (size_of::<((u32, u32), u32)>() + 1) * 8 / 7;
        let (states, edges) = self.size();
        (states * size_of::<State>() + edges * (size_of::<Edge>() + entry)) as u64
    }
}
