//! A line of a test is a Feed and the steps that follow it, or the fault that it is.
//!
//! A Feed: `1:0+3` context of session 1, 3 rows from position 0; `1!0+3` the same, fresh; `1?3/8` a
//! block of 8 rows at position 3; `-1` closes, `-1@ab` with its first pages named a and b;
//! `1!128+3@b` goes on from the context that was retained as b.
//!
//! Steps: `r1` answers round 1; `1:0+3/8` reads and drafts; `1~MovedOn` is denied; `1=3` is
//! reported as read up to 3. Commands after them: `free1` slot 1, `retain3=128>5` 128 rows of slot
//! 3 as 5, `evict5`, `restore5=128>4` into slot 4. `miss1` is a session that could not begin.

use std::collections::HashMap;

use paceline_vocabulary::link::{
    Context, DraftRequest, DraftSampling, Feed, ImageSpan, RestoredPrefix, RetainedPages,
};
use paceline_vocabulary::tensor::TensorRef;
use paceline_vocabulary::{RequestId, SamplingRule};
use proptest::prelude::*;

use super::retained::Found;
use super::*;

type Fault = fn(&mut Feed);

pub(crate) fn terms() -> Terms {
    Terms {
        hidden_size: 1,
        feature_width: 1,
        embeddings: true,
        token_ids: false,
        vocab_size: 100,
        block: 8,
        context: 1000,
        target_context: 2000,
        max_sessions: 3,
        element: TensorType::F16,
    }
}

/// A draft request whose sampling differs from those of other sessions.
pub(crate) fn request(session: u64, position: u32, block: u32) -> DraftRequest {
    let rule = SamplingRule { temperature: 0.5, ..SamplingRule::GREEDY };
    let sampling = DraftSampling { rule, seed: 100 + session, sample_index: session as u32 };
    let least_survival = (session % 8) as f32 / 8.0;
    DraftRequest {
        session,
        position,
        block,
        bonus_id: 7 * session as u32,
        sampling,
        least_survival,
    }
}

struct Rig {
    sessions: Sessions,
    missed: Vec<u64>,
    round: u64,
    value: u16,
    /// Values of the rows by (session, position), of the newest start of the session.
    rows: HashMap<(u64, u32), u16>,
}

impl Rig {
    fn new() -> Self {
        // Eight pages fit.
        let retained = RetainedContexts::new(2, 2 * 8 * 64);
        Self {
            sessions: Sessions::new(terms(), retained, 1),
            missed: vec![],
            round: 0,
            value: 0,
            rows: HashMap::new(),
        }
    }

    fn feed_of(&mut self, text: &str) -> Feed {
        let mut feed = Feed::default();
        let numbers = |word: &str| -> Vec<u32> {
            word.split([':', '!', '?', '+', '/']).map(|n| n.parse().expect("a number")).collect()
        };
        for word in text.split_whitespace() {
            let (word, names) = word.split_once('@').unwrap_or((word, ""));
            let mut keys = names.bytes().map(|name| [name; 32]);
            if let Some(session) = word.strip_prefix('-') {
                let session = session.parse().expect("a number");
                feed.closed.push(session);
                if keys.len() > 0 {
                    let keys = keys.collect();
                    feed.retained.push(RetainedPages { session, first_page: 0, keys });
                }
                continue;
            }
            let [session, position, count] = numbers(word)[..] else { panic!("{word}") };
            let session = u64::from(session);
            if let Some(key) = keys.next() {
                feed.restored.push(RestoredPrefix { session, key, since: position });
            }
            match word.contains('?') {
                true => feed.requests.push(request(session, position, count)),
                false => feed.contexts.push(Context {
                    session,
                    position,
                    rows: count,
                    fresh: word.contains('!'),
                    request_id: RequestId::parse(&format!("r{session}")),
                    ..Context::default()
                }),
            }
        }
        let tensor = |rows: u32| TensorRef {
            number: 1,
            offset: 0,
            length: 0,
            rows,
            columns: 1,
            element: TensorType::F16,
        };
        let rows = feed.contexts.iter().fold(0u32, |sum, context| sum.saturating_add(context.rows));
        feed.hidden = (!feed.contexts.is_empty()).then(|| tensor(rows));
        feed.bonus = (!feed.requests.is_empty()).then(|| tensor(feed.requests.len() as u32));
        feed.round = if feed.requests.is_empty() { 0 } else { self.round + 1 };
        feed
    }

    fn give(&mut self, feed: Feed) -> Result<(), FeedError> {
        self.sessions.check(&feed)?;
        self.round = self.round.max(feed.round);
        let mut hidden = vec![];
        for context in &feed.contexts {
            for position in context.position..context.position + context.rows {
                self.value = self.value.wrapping_add(1);
                self.rows.insert((context.session, position), self.value);
                hidden.extend(self.value.to_le_bytes());
            }
        }
        let bonus =
            feed.requests.iter().flat_map(|one| (one.session as u16).to_le_bytes()).collect();
        let opened = self.sessions.feed(feed, hidden, bonus);
        for session in opened.opened.iter().chain(&opened.missed) {
            let id = RequestId::parse(&format!("r{session}"));
            assert_eq!(self.sessions.request_id(*session), id.as_ref());
        }
        self.missed.extend(opened.missed);
        Ok(())
    }

    /// Every step there is, as text; their bytes are checked.
    fn steps(&mut self) -> String {
        let mut all = vec![];
        while let Some(step) = self.sessions.next_step() {
            let mut words: Vec<String> =
                step.round.iter().map(|round| format!("r{round}")).collect();
            for work in &step.sessions {
                self.check_bytes(work);
                let block = work.block.as_ref().map(|block| format!("/{}", block.rows));
                let block = block.unwrap_or_default();
                words.push(format!("{}:{}+{}{block}", work.session, work.position, work.context));
            }
            words.extend(step.denied.iter().map(|one| format!("{}~{:?}", one.session, one.reason)));
            words.extend(
                step.progress.iter().map(|one| format!("{}={}", one.session, one.position)),
            );
            all.push(words.join(" "));
        }
        let commands = self.sessions.take_commands();
        let word = |one: &StoreCommand| match *one {
            StoreCommand::Free { slot } => format!("free{slot}"),
            StoreCommand::Retain { slot, rows, context } => {
                format!("retain{slot}={rows}>{context}")
            }
            StoreCommand::Evict { context } => format!("evict{context}"),
            StoreCommand::Restore { context, slot, rows, .. } => {
                format!("restore{context}={rows}>{slot}")
            }
        };
        let missed = self.missed.drain(..).map(|session| format!("miss{session}"));
        let words: Vec<String> = commands.iter().map(word).chain(missed).collect();
        if !words.is_empty() {
            all.push(words.join(" "));
        }
        all.join(" | ")
    }

    fn check_bytes(&self, work: &SessionWork) {
        let expected: Vec<u8> = (work.position..work.end())
            .flat_map(|at| self.rows[&(work.session, at)].to_le_bytes())
            .collect();
        let found: Vec<u8> = work.hidden.iter().flat_map(|rows| rows.bytes().to_vec()).collect();
        assert_eq!(found, expected);
        if let Some(block) = &work.block {
            let bonus = block.bonus.as_ref().expect("an embedding");
            assert_eq!(bonus.bytes(), (work.session as u16).to_le_bytes());
            let request = request(work.session, work.end(), block.rows);
            assert_eq!((block.bonus_id, block.sampling), (request.bonus_id, request.sampling));
            assert_eq!(block.least_survival, request.least_survival);
        }
    }
}

fn check(lines: &[(&str, &str)]) {
    let mut rig = Rig::new();
    for (feed, expected) in lines {
        let feed = rig.feed_of(feed);
        let found = match rig.give(feed) {
            Ok(()) => rig.steps(),
            Err(fault) => format!("fault {fault}"),
        };
        let fault = expected
            .strip_prefix("fault ")
            .filter(|fault| found.starts_with("fault ") && found.contains(fault));
        let same = fault.is_some() || found == *expected;
        assert!(same, "expected {expected:?}, found {found:?}");
    }
}

#[test]
fn context_is_read_and_drafts_are_made_in_one_forward() {
    check(&[
        ("1:0+3", "1:0+3 1=3"),
        ("1?3/8", "r1 1:3+0/8"),
        ("1:3+4 1?7/8", "r2 1:3+4/8"),
        ("1:7+2 2:100+5 1?9/4 2?105/8", "r3 1:7+2/4 2:100+5/8"),
        ("1:9+1 2:105+1 1?10/8", "r4 1:9+1/8 2:105+1 2=106"),
        ("1:10+1 1:11+2", "1:10+3 1=13"),
        ("", ""),
    ]);
}

#[test]
fn long_contexts_are_read_in_pieces_in_turn_and_drafts_go_before_them() {
    check(&[
        ("1:0+600 2:0+700", "1:0+512 1=512 | 2:0+512 2=512 | 1:512+88 2:512+188 1=600 2=700"),
        ("1:600+100 2:700+1 2?701/8", "r1 2:700+1/8 | 1:600+100 1=700"),
        ("1:700+40 2:701+1 2?702/8", "r2 2:701+1/8 1:700+40 1=740"),
        // A session that is still reading is left out, and reported when it has caught up.
        (
            "2:702+1 3:0+600 3?600/8 2?703/8",
            "r3 2:702+1/8 3~Reading | 3:0+512 3=512 | 3:512+88 3=600",
        ),
        ("3?600/8", "r4 3:600+0/8"),
        // All drafts of one round are in one forward.
        (
            "1!0+300 2!0+300 3!0+300 1?300/8 2?300/8 3?300/8",
            "r5 1:0+300/8 2:0+300/8 3:0+300/8 | free1 free2 free3",
        ),
    ]);
}

#[test]
fn a_draft_that_waits_is_served_between_pieces() {
    let mut rig = Rig::new();
    let feed = rig.feed_of("1:0+900 2:0+4");
    rig.give(feed).expect("fair");
    let piece = rig.sessions.next_step().expect("a piece");
    assert_eq!((piece.sessions[0].session, piece.sessions[0].context), (1, 512));
    let feed = rig.feed_of("2:4+1 2?5/8");
    rig.give(feed).expect("fair");
    assert_eq!(rig.steps(), "r1 2:0+5/8 | 1:512+388 1=900");
    assert_eq!(rig.sessions.waiting_bytes(), 0);
}

#[test]
fn requests_that_cannot_be_served_are_left_out_with_a_reason() {
    check(&[
        ("1:0+3 2:0+3 1?2/8 2?3/8", "r1 2:0+3/8 1:0+3 1~MovedOn 1=3"),
        ("1?4/8", "r2 1~MovedOn"),
        // A fresh start comes before the request.
        ("1!990+8 1?998/2", "r3 1:990+8/2 | free1"),
        // At the end of the drafter's context the block gets shorter.
        ("1?998/3", "r4 1:998+0/2"),
        ("1:998+5", "1:998+2 1=1000"),
        ("1:1003+5 1?1008/2", "r5 1~EndOfContext"),
        ("1!5+1 1?6/8", "r6 1:5+1/8 | free3"),
    ]);
}

#[test]
fn a_fresh_start_and_a_close_forget_the_context() {
    check(&[
        ("1:0+600", "1:0+512 1=512 | 1:512+88 1=600"),
        ("1!88+512 1?600/8", "r1 1:88+512/8 | free1"),
        ("-1", "free2"),
        ("-1", ""),
        ("1:40+1", "1:40+1 1=41"),
        ("-1 1:7+1", "1:7+1 1=8 | free3"),
        ("2:0+1 3:0+1", "2:0+1 3:0+1 2=1 3=1"),
        ("-3 4:0+1", "4:0+1 4=1 | free6"),
    ]);
}

#[test]
fn a_closed_context_is_retained_by_name_and_begins_others() {
    check(&[
        ("1:0+150 1?150/8", "r1 1:0+150/8"),
        // Two whole pages were read. Rows without a name, or unread ones, are not retained.
        ("-1@abc", "retain1=128>1 free1"),
        ("2!128+3@b 2?131/8", "r2 2:128+3/8 | restore1=128>2"),
        // A longer context is retained: its prefix is not needed any more.
        ("2:131+70", "2:131+70 2=201"),
        ("-2@abx", "evict1 retain2=192>2 free2"),
        ("3!64+1@a 3?65/8", "r3 3:64+1/8 | restore2=64>3"),
        // A name that was never given, or one at another position.
        ("1!128+5@y 1?133/8", "r4 1~Missed | miss1"),
        ("1:133+2 1?135/8", "r5 1~Missed"),
        ("1!64+5@b", "free4 miss1"),
        // After a fresh context without a name it goes on as always.
        ("1!40+95 1?135/8", "r6 1:40+95/8 | free5"),
        ("-1 -3@a", "free6 free3"),
    ]);
}

#[test]
fn a_store_of_windows_continues_a_context_at_its_end_alone() {
    let pages = |keys: std::ops::Range<u8>| RetainedPages {
        session: 1,
        first_page: 0,
        keys: keys.map(|key| [key; 32]).collect(),
    };
    let (mut retained, mut commands) = (RetainedContexts::new(2, 1000).with_ends(100), vec![]);
    retained.add(&pages(1..4), 1, 0..200, &mut commands);
    assert_eq!(retained.bytes(), 192 * 2 + 100);
    let found = |retained: &mut RetainedContexts, key: u8, position| {
        retained.find(&[key; 32], position, 0).map(|found| found.context)
    };
    assert_eq!(found(&mut retained, 3, 192), Some(1));
    assert_eq!(found(&mut retained, 2, 128), None, "the window before row 128 is gone");
    // A shorter context with the same beginning is not had already.
    retained.add(&pages(1..3), 2, 0..130, &mut commands);
    assert_eq!((found(&mut retained, 2, 128), found(&mut retained, 3, 192)), (Some(2), Some(1)));
    // Too many rows were read after the last page with a name.
    let before = commands.len();
    retained.add(&pages(5..6), 3, 0..64 + PIECE_ROWS + 1, &mut commands);
    assert_eq!(commands.len(), before);
    retained.add(&pages(5..6), 4, 0..64 + PIECE_ROWS, &mut commands);
    assert_eq!(found(&mut retained, 5, 64), Some(3));
}

#[test]
fn retained_contexts_are_bounded_and_reach_back_far_enough() {
    check(&[
        ("1:0+256 2:0+256 3:0+128", "1:0+256 2:0+256 1=256 2=256 | 3:0+128 3=128"),
        ("-1@abcd -2@efgh", "retain1=256>1 free1 retain2=256>2 free2"),
        ("1!64+1@a", "1:64+1 1=65 | restore1=64>4"),
        // The least recently used one is evicted.
        ("-3@ij", "evict2 retain3=128>3 free3"),
        ("2!256+1@h", "miss2"),
        // The first page of a context that began in its middle is not whole. The context serves
        // sessions of which the target has no earlier rows either.
        ("-1 -2 3:100+200", "3:100+200 3=300 | free4 free5"),
        ("-3@qrst", "evict1 retain6=156>4 free6"),
        ("1!256+1@t", "1:256+1 1=257 | restore4=156>7"),
    ]);
    let (mut retained, mut commands) = (RetainedContexts::new(2, 1000), vec![]);
    let key = [7; 32];
    let pages = RetainedPages { session: 1, first_page: 2, keys: vec![key] };
    retained.add(&pages, 1, 150..192, &mut commands);
    assert_eq!((retained.find(&key, 192, 149), retained.find(&key, 128, 150)), (None, None));
    let found = Some(Found { context: 1, start: 150 });
    assert_eq!((retained.find(&key, 192, 150), retained.bytes()), (found, 84));
    // A context that is larger than the limit, or has no whole page, is not retained.
    retained.add(&RetainedPages { first_page: 9, ..pages.clone() }, 2, 0..640, &mut commands);
    let last = RetainedPages { first_page: u32::MAX, ..pages.clone() };
    retained.add(&last, 2, 0..640, &mut commands);
    retained.add(&pages, 3, 10..191, &mut commands);
    assert_eq!(commands.len(), 1);
}

#[test]
fn page_names_belong_to_sessions_that_the_feed_closes_or_begins() {
    let faults: [(&str, &str, Fault); 4] = [
        ("-1@a", "for a session that this feed closes", |feed| feed.closed.clear()),
        ("-1@a", "page names once", |feed| feed.retained.push(feed.retained[0].clone())),
        ("1!64+2@a", "one fresh context", |feed| {
            (feed.contexts[0].fresh, feed.contexts[0].position) = (false, 3)
        }),
        ("1!64+2@a", "one name to begin it with", |feed| feed.restored.push(feed.restored[0])),
    ];
    for (text, expected, change) in faults {
        let mut rig = Rig::new();
        let feed = rig.feed_of("1:0+3");
        rig.give(feed).expect("fair");
        let mut feed = rig.feed_of(text);
        change(&mut feed);
        let fault = rig.give(feed).expect_err(expected).to_string();
        assert!(fault.contains(expected), "{fault}");
    }
}

#[test]
fn a_feed_that_contradicts_the_sessions_is_a_fault_and_changes_nothing() {
    check(&[
        ("1:5+3", "1:5+3 1=8"),
        ("1:9+1", "fault expected its context to go on at 8, found 9"),
        ("1:8+1 1:8+1", "fault expected its context to go on at 9, found 8"),
        ("1:8+0", "fault found 0 rows from 8"),
        ("1:8+1993", "fault positions up to 2000, found 1993 rows from 8"),
        ("1:8+4294967295", "fault positions up to 2000"),
        ("2?0/8", "fault session 2, which is not open"),
        ("-1 1?8/8", "fault session 1, which is not open"),
        ("1?8/1", "fault a block of 2 to 8 rows, found 1"),
        ("1?8/9", "fault a block of 2 to 8 rows, found 9"),
        ("1?8/8 1?8/8", "fault two drafts"),
        ("2:0+1 3:0+1 4:0+1", "fault at most 3 sessions, found 4"),
        ("1:8+1 1?9/8", "r1 1:8+1/8"),
    ]);
    let faults: [(&str, Fault); 12] = [
        ("expected hidden states of [1, 1]", |feed| feed.hidden = None),
        ("expected hidden states of [0, 1]", |feed| feed.contexts.clear()),
        ("expected hidden states of [1, 1]", |feed| {
            feed.hidden.iter_mut().for_each(|hidden| hidden.rows = 2)
        }),
        ("expected hidden states of [1, 1]", |feed| {
            feed.hidden.iter_mut().for_each(|hidden| hidden.columns = 2)
        }),
        ("expected hidden states of [1, 1]", |feed| {
            feed.hidden.iter_mut().for_each(|hidden| hidden.element = TensorType::F32)
        }),
        ("expected embeddings of [1, 1]", |feed| feed.bonus = None),
        ("round after 0, found 0", |feed| feed.round = 0),
        ("round 1 has no requests", |feed| (feed.requests, feed.bonus) = (vec![], None)),
        ("temperature of its sampling: expected a number from 0 to 100, found NaN", |feed| {
            feed.requests[0].sampling.rule.temperature = f32::NAN
        }),
        ("temperature of its sampling: expected a number from 0 to 100, found -1", |feed| {
            feed.requests[0].sampling.rule.temperature = -1.0
        }),
        ("least survival from 0 to 1, found NaN", |feed| {
            feed.requests[0].least_survival = f32::NAN
        }),
        ("least survival from 0 to 1, found 1.5", |feed| feed.requests[0].least_survival = 1.5),
    ];
    for (expected, change) in faults {
        let mut rig = Rig::new();
        let mut feed = rig.feed_of("1:0+1 1?1/8");
        change(&mut feed);
        let fault = rig.give(feed).expect_err(expected).to_string();
        assert!(fault.contains(expected), "{fault}");
    }
}

proptest! {
    /// For every schedule: rows are read once and in order, a session is in a step once, pieces
    /// are bounded, rounds are answered in order, and nothing waits in the end.
    #[test]
    fn every_schedule_keeps_the_rules(feeds in prop::collection::vec(
        (prop::collection::vec((1u64..5, 0u8..10, 1u32..400), 0..4), prop::collection::vec((1u64..5, 2u32..9, 0u8..4), 0..3), 0u8..3), 1..40
    )) {
        let mut rig = Rig::new();
        let mut ends: HashMap<u64, u32> = HashMap::new();
        let mut read: HashMap<u64, (u64, u32)> = HashMap::new();
        let mut answered = 0;
        for (contexts, wants, steps) in feeds {
            let mut text = String::new();
            let before = ends.clone();
            for (session, what, rows) in contexts {
                let end = ends.get(&session).copied();
                let (mark, position) = match (what, end) {
                    (0, _) => ('!', u32::from(what) * 7),
                    (1, Some(_)) => { text += &format!("-{session} "); ends.remove(&session); continue }
                    (_, Some(end)) => (':', end),
                    (_, None) => (':', rows),
                };
                text += &format!("{session}{mark}{position}+{rows} ");
                ends.insert(session, position + rows);
            }
            for (session, block, off) in wants {
                let end = ends.get(&session).copied().unwrap_or(0);
                text += &format!("{session}?{}/{block} ", end - u32::from(off == 0).min(end));
            }
            let feed = rig.feed_of(&text);
            if rig.give(feed).is_err() {
                ends = before;
            }
            for _ in 0..steps {
                one(&mut rig, &mut read, &mut answered);
            }
        }
        while one(&mut rig, &mut read, &mut answered) {}
        prop_assert_eq!(rig.sessions.waiting_bytes(), 0);
        prop_assert_eq!(answered, rig.round);
    }
}

fn one(rig: &mut Rig, read: &mut HashMap<u64, (u64, u32)>, answered: &mut u64) -> bool {
    let Some(step) = rig.sessions.next_step() else { return false };
    if let Some(round) = step.round {
        assert!(round > *answered);
        *answered = round;
    } else {
        assert!(!step.sessions.is_empty());
    }
    assert!(step.round.is_some() || context_rows(&step) <= PIECE_ROWS);
    for (at, work) in step.sessions.iter().enumerate() {
        rig.check_bytes(work);
        assert!(work.context <= PIECE_ROWS);
        assert!(step.sessions[..at].iter().all(|other| other.session != work.session));
        let rows = work.context + work.block_rows();
        assert!(rows > 0 && work.position + rows <= terms().context);
        let (slot, end) = read.get(&work.session).copied().unwrap_or((0, 0));
        assert!(slot < work.slot || end == work.position, "a gap");
        read.insert(work.session, (work.slot, work.end()));
        let reported = step
            .progress
            .iter()
            .any(|one| (one.session, one.position) == (work.session, work.end()));
        assert_eq!(reported, work.block.is_none());
    }
    true
}

fn context_rows(step: &Step) -> u32 {
    step.sessions.iter().map(|work| work.context).sum()
}

#[test]
fn token_ids_go_with_the_rows_and_the_next_one_is_known() {
    let retained = RetainedContexts::new(0, 0);
    let terms = Terms { feature_width: 0, embeddings: false, token_ids: true, ..terms() };
    let mut sessions = Sessions::new(terms, retained, 1);
    let context = |position: u32, rows: u32, next_id| Context {
        session: 1,
        position,
        rows,
        fresh: position == 0,
        ids: (position..position + rows).map(|at| at % 100).collect(),
        next_id,
        ..Context::default()
    };
    let feed = |context: Context| Feed { contexts: vec![context], ..Feed::default() };
    for wrong in [
        Context { ids: vec![1], ..context(0, 2, None) },
        Context { ids: vec![1, 100], ..context(0, 2, None) },
        context(0, 2, Some(100)),
    ] {
        let found = sessions.check(&feed(wrong));
        assert!(matches!(found, Err(FeedError::Ids { session: 1, .. })), "{found:?}");
    }
    // More than one piece: the token after the first piece is the second one's first.
    let long = feed(context(0, PIECE_ROWS + 5, Some(17)));
    assert_eq!(sessions.check(&long), Ok(()));
    sessions.feed(long, vec![], vec![]);
    let mut read = vec![];
    while let Some(step) = sessions.next_step() {
        let work = &step.sessions[0];
        assert_eq!((work.ids.len() as u32, work.hidden.len()), (work.context, 0));
        read.push((work.position, work.context, work.ids[0], work.next_id));
    }
    let second = PIECE_ROWS % 100;
    assert_eq!(read, [(0, PIECE_ROWS, 0, Some(second)), (PIECE_ROWS, 5, second, Some(17))]);
}

#[test]
fn images_are_those_of_the_session_and_lie_one_after_another() {
    let terms = Terms { feature_width: 0, embeddings: false, token_ids: true, ..terms() };
    let mut sessions = Sessions::new(terms, RetainedContexts::new(0, 0), 1);
    let span = |first, rows, columns| ImageSpan { first, rows, columns };
    let context = |position: u32, images: &[ImageSpan]| Context {
        session: 1,
        position,
        rows: 4,
        fresh: position == 0,
        ids: vec![5; 4],
        next_id: Some(6),
        images: images.to_vec(),
        ..Context::default()
    };
    let feed = |context: Context| Feed { contexts: vec![context], ..Feed::default() };
    let good = [span(2, 5, 4), span(22, 1, 1), span(30, 197, 10)];
    for wrong in [
        context(0, &[span(2, 5, 4), span(21, 1, 1)]),
        context(0, &[span(30, 1, 1), span(2, 5, 4)]),
        context(0, &[span(2, 0, 4)]),
        context(0, &[span(2, u32::MAX, u32::MAX)]),
        context(0, &[span(1_999, 1, 2)]),
        context(4, &good),
    ] {
        let found = sessions.check(&feed(wrong.clone()));
        assert!(matches!(found, Err(FeedError::Images { session: 1, .. })), "{wrong:?}");
    }
    for (position, images) in [(0, &good[..]), (4, &[])] {
        let feed = feed(context(position, images));
        assert_eq!(sessions.check(&feed), Ok(()));
        sessions.feed(feed, vec![], vec![]);
        let step = sessions.next_step().expect("rows to read");
        assert_eq!(*step.sessions[0].images, good, "of the whole session");
    }
}
