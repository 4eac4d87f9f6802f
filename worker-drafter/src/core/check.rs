//! Whether a Feed says what link.proto allows, before a byte of it is used.

use std::collections::HashMap;

use paceline_proto::internal::v1::{Context, Feed, TensorRef};

use super::Sessions;
use super::kept::{KEY_BYTES, MOST_KEYS};

impl Sessions {
    /// Checks a Feed against the sessions there are. Nothing is changed.
    ///
    /// # Errors
    /// What is wrong with it, expected and found: the link ends.
    pub fn check(&self, feed: &Feed) -> Result<(), String> {
        // Where each session's context ends after this Feed; `None`: closed.
        let mut ends: HashMap<u64, Option<u32>> =
            feed.closed.iter().map(|session| (*session, None)).collect();
        let mut rows = 0u64;
        for context in &feed.contexts {
            let before =
                ends.get(&context.session).copied().unwrap_or_else(|| self.end(context.session));
            ends.insert(context.session, Some(self.check_context(context, before)?));
            rows += u64::from(context.rows);
        }
        let closed = ends
            .iter()
            .filter(|(session, end)| end.is_none() && self.end(**session).is_some())
            .count();
        let opened = ends
            .iter()
            .filter(|(session, end)| end.is_some() && self.end(**session).is_none())
            .count();
        let open = self.len() - closed + opened;
        if open > self.terms().max_sessions {
            return Err(format!(
                "expected at most {} sessions, found {open}",
                self.terms().max_sessions
            ));
        }
        self.check_tensor("taps", feed.taps.as_ref(), rows, self.terms().taps)?;

        for (at, want) in feed.wants.iter().enumerate() {
            let session = want.session;
            let end = ends.get(&session).copied().unwrap_or_else(|| self.end(session));
            if end.is_none() {
                return Err(format!("a draft is wanted for session {session}, which is not open"));
            }
            if feed.wants[..at].iter().any(|other| other.session == session) {
                return Err(format!("two drafts are wanted for session {session}"));
            }
            if !(2..=self.terms().block).contains(&want.block) {
                return Err(format!(
                    "session {session}: expected a block of 2 to {} rows, found {}",
                    self.terms().block,
                    want.block
                ));
            }
            if !(want.temperature.is_finite() && want.temperature >= 0.0) {
                return Err(format!(
                    "session {session}: expected a temperature from 0, found {}",
                    want.temperature
                ));
            }
        }
        check_names(feed)?;
        self.check_tensor(
            "embeddings",
            feed.bonus.as_ref(),
            feed.wants.len() as u64,
            self.terms().hidden,
        )?;
        match (feed.wants.is_empty(), feed.round) {
            (true, 0) => Ok(()),
            (true, round) => Err(format!("round {round} has no wants")),
            (false, round) if round > self.last_round() => Ok(()),
            (false, round) => {
                Err(format!("expected a round behind {}, found {round}", self.last_round()))
            }
        }
    }

    /// Where the session's context ends after this one; `before`: where it ended, if it was open.
    fn check_context(&self, context: &Context, before: Option<u32>) -> Result<u32, String> {
        let Context { session, position, rows, fresh } = *context;
        if let Some(end) = before.filter(|end| !fresh && *end != position) {
            return Err(format!(
                "session {session}: expected its context to go on at {end}, found {position}"
            ));
        }
        let end = position
            .checked_add(rows)
            .filter(|end| rows > 0 && *end <= self.terms().target_context);
        end.ok_or_else(|| {
            let last = self.terms().target_context;
            format!("session {session}: expected rows at positions up to {last}, found {rows} rows from {position}")
        })
    }

    fn check_tensor(
        &self,
        what: &str,
        tensor: Option<&TensorRef>,
        rows: u64,
        columns: u32,
    ) -> Result<(), String> {
        let fits = match tensor {
            None => rows == 0,
            Some(tensor) => {
                rows > 0
                    && u64::from(tensor.rows) == rows
                    && tensor.columns == columns
                    && tensor.r#type == i32::from(self.terms().kind)
            }
        };
        match fits {
            true => Ok(()),
            false => Err(format!(
                "expected {what} of [{rows}, {columns}] {:?}, none for no rows; found {tensor:?}",
                self.terms().kind
            )),
        }
    }
}

/// Names of pages: whose they are, and that they are names.
fn check_names(feed: &Feed) -> Result<(), String> {
    for (at, keep) in feed.keeps.iter().enumerate() {
        let session = keep.session;
        if !feed.closed.contains(&session)
            || feed.keeps[..at].iter().any(|other| other.session == session)
        {
            return Err(format!("session {session}: expected it to be kept once, as it is closed"));
        }
        if !keep.keys.len().is_multiple_of(KEY_BYTES) || keep.keys.len() > MOST_KEYS * KEY_BYTES {
            let found = keep.keys.len();
            return Err(format!(
                "session {session}: expected up to {MOST_KEYS} names of {KEY_BYTES} bytes, found {found} bytes"
            ));
        }
    }
    for (at, recall) in feed.recalls.iter().enumerate() {
        let session = recall.session;
        let starts = feed
            .contexts
            .iter()
            .filter(|context| context.session == session && context.fresh)
            .count();
        if starts != 1 || feed.recalls[..at].iter().any(|other| other.session == session) {
            return Err(format!(
                "session {session}: expected one fresh context and one name to begin it with, found {starts}"
            ));
        }
        if recall.key.len() != KEY_BYTES {
            return Err(format!(
                "session {session}: expected a name of {KEY_BYTES} bytes, found {}",
                recall.key.len()
            ));
        }
    }
    Ok(())
}
