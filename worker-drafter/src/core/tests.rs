//! A line is a Feed and the steps it leads to, or the fault it is.
//!
//! Feed: `1:0+3` context of session 1, 3 rows from position 0; `1!0+3` the same, fresh; `1?3/8` a
//! block of 8 behind position 3; `-1` closed, `-1@ab` with its first pages named a and b;
//! `1!128+3@b` goes on from what was kept as b. Steps: `r1` answers round 1; `1:0+3/8` reads and
//! drafts; `1=3` is told to be read up to 3; moves behind them: `free1` slot 1, `keep3=128>5` 128
//! rows of slot 3 as 5, `drop5`, `recall5=128>4` into slot 4; `miss1` session 1.

use std::collections::HashMap;

use paceline_proto::internal::v1::{Context, Feed, Keep, Recall, TensorRef, TensorType, Want};
use proptest::prelude::*;

use super::*;

type Fault = fn(&mut Feed);

fn terms() -> Terms {
    Terms {
        hidden: 1,
        taps: 1,
        block: 8,
        context: 1000,
        target_context: 2000,
        max_sessions: 3,
        kind: TensorType::F16,
    }
}

struct Rig {
    sessions: Sessions,
    missed: Vec<u64>,
    round: u64,
    value: u16,
    /// What lies at (session, position), by the newest start of the session.
    rows: HashMap<(u64, u32), u16>,
}

impl Rig {
    fn new() -> Self {
        // Room for eight pages.
        let kept = Kept::new(2, 2 * 8 * 64);
        Self {
            sessions: Sessions::new(terms(), kept, 1),
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
            let mut keys = names.bytes().map(|name| [name; kept::KEY_BYTES]);
            if let Some(session) = word.strip_prefix('-') {
                let session = session.parse().expect("a number");
                feed.closed.push(session);
                if keys.len() > 0 {
                    feed.keeps.push(Keep {
                        session,
                        first_page: 0,
                        keys: keys.flatten().collect::<Vec<u8>>().into(),
                    });
                }
                continue;
            }
            let [session, position, count] = numbers(word)[..] else { panic!("{word}") };
            let session = u64::from(session);
            if let Some(key) = keys.next() {
                feed.recalls.push(Recall { session, key: key.to_vec().into(), since: position });
            }
            match word.contains('?') {
                true => {
                    feed.wants.push(Want { session, position, block: count, ..Want::default() })
                }
                false => feed.contexts.push(Context {
                    session,
                    position,
                    rows: count,
                    fresh: word.contains('!'),
                }),
            }
        }
        let tensor = |rows: u32| TensorRef {
            rows,
            columns: 1,
            r#type: TensorType::F16.into(),
            ..TensorRef::default()
        };
        let rows = feed.contexts.iter().fold(0u32, |sum, context| sum.saturating_add(context.rows));
        feed.taps = (!feed.contexts.is_empty()).then(|| tensor(rows));
        feed.bonus = (!feed.wants.is_empty()).then(|| tensor(feed.wants.len() as u32));
        feed.round = if feed.wants.is_empty() { 0 } else { self.round + 1 };
        feed
    }

    fn give(&mut self, feed: Feed) -> Result<(), String> {
        self.sessions.check(&feed)?;
        self.round = self.round.max(feed.round);
        let mut taps = vec![];
        for context in &feed.contexts {
            for position in context.position..context.position + context.rows {
                self.value = self.value.wrapping_add(1);
                self.rows.insert((context.session, position), self.value);
                taps.extend(self.value.to_le_bytes());
            }
        }
        let bonus =
            feed.wants.iter().flat_map(|want| (want.session as u16).to_le_bytes()).collect();
        self.missed.extend(self.sessions.feed(feed, taps, bonus));
        Ok(())
    }

    /// Every step there is, as text; their bytes are checked.
    fn steps(&mut self) -> String {
        let mut all = vec![];
        while let Some(step) = self.sessions.next_step() {
            let mut words: Vec<String> =
                step.round.iter().map(|round| format!("r{round}")).collect();
            for part in &step.parts {
                self.check_bytes(part);
                let block = if part.block > 0 { format!("/{}", part.block) } else { String::new() };
                words.push(format!("{}:{}+{}{block}", part.session, part.position, part.context));
            }
            words.extend(
                step.reach.iter().map(|reach| format!("{}={}", reach.session, reach.position)),
            );
            all.push(words.join(" "));
        }
        let moves = self.sessions.take_moves();
        let word = |one: &Move| match *one {
            Move::Free { slot } => format!("free{slot}"),
            Move::Keep { slot, rows, kept } => format!("keep{slot}={rows}>{kept}"),
            Move::Drop { kept } => format!("drop{kept}"),
            Move::Recall { kept, slot, rows, .. } => format!("recall{kept}={rows}>{slot}"),
        };
        let missed = self.missed.drain(..).map(|session| format!("miss{session}"));
        let words: Vec<String> = moves.iter().map(word).chain(missed).collect();
        if !words.is_empty() {
            all.push(words.join(" "));
        }
        all.join(" | ")
    }

    fn check_bytes(&self, part: &Part) {
        let expected: Vec<u8> = (part.position..part.position + part.context)
            .flat_map(|at| self.rows[&(part.session, at)].to_le_bytes())
            .collect();
        assert_eq!(
            part.taps.iter().flat_map(|rows| rows.bytes().to_vec()).collect::<Vec<_>>(),
            expected
        );
        assert_eq!(part.bonus.is_some(), part.block > 0);
        if let Some(bonus) = &part.bonus {
            assert_eq!(bonus.bytes(), (part.session as u16).to_le_bytes());
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
fn long_contexts_come_in_pieces_in_turn_and_drafts_go_before_them() {
    check(&[
        ("1:0+600 2:0+700", "1:0+512 1=512 | 2:0+512 2=512 | 1:512+88 2:512+188 1=600 2=700"),
        ("1:600+100 2:700+1 2?701/8", "r1 2:700+1/8 | 1:600+100 1=700"),
        ("1:700+40 2:701+1 2?702/8", "r2 2:701+1/8 1:700+40 1=740"),
        // Still reading itself: left out, and it hears when it has caught up.
        ("2:702+1 3:0+600 3?600/8 2?703/8", "r3 2:702+1/8 | 3:0+512 3=512 | 3:512+88 3=600"),
        ("3?600/8", "r4 3:600+0/8"),
        // All that are asked for at once are served at once.
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
    assert_eq!((piece.parts[0].session, piece.parts[0].context), (1, 512));
    let feed = rig.feed_of("2:4+1 2?5/8");
    rig.give(feed).expect("fair");
    assert_eq!(rig.steps(), "r1 2:0+5/8 | 1:512+388 1=900");
    assert_eq!(rig.sessions.waiting_bytes(), 0);
}

#[test]
fn wants_that_cannot_be_served_are_left_out() {
    check(&[
        ("1:0+3 2:0+3 1?2/8 2?3/8", "r1 2:0+3/8 1:0+3 1=3"),
        ("1?4/8", "r2"),
        // Session 1 moved on before the answer.
        ("1!990+8 1?998/2", "r3 1:990+8/2 | free1"),
        // At the end of the context: as much of the block as there is room for.
        ("1?998/3", "r4 1:998+0/2"),
        ("1:998+5", "1:998+2 1=1000"),
        ("1:1003+5 1?1008/2", "r5"),
        ("1!5+1 1?6/8", "r6 1:5+1/8 | free3"),
    ]);
}

#[test]
fn fresh_starts_and_ends_forget() {
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
fn what_was_read_is_kept_by_name_and_begins_others() {
    check(&[
        ("1:0+150 1?150/8", "r1 1:0+150/8"),
        // Two whole pages were read; what has no name, or was not read, is not kept.
        ("-1@abc", "keep1=128>1 free1"),
        ("2!128+3@b 2?131/8", "r2 2:128+3/8 | recall1=128>2"),
        // Kept again as what goes on from it: the shorter one is not needed any more. The number
        // counts uses.
        ("2:131+70", "2:131+70 2=201"),
        ("-2@abx", "drop1 keep2=192>3 free2"),
        ("3!64+1@a 3?65/8", "r3 3:64+1/8 | recall3=64>3"),
        // Another beginning, or a name at another position, or one that was never told.
        ("1!128+5@y 1?133/8", "r4 | miss1"),
        ("1:133+2 1?135/8", "r5"),
        ("1!64+5@b", "free4 miss1"),
        // Shown what there is, it goes on as ever.
        ("1!40+95 1?135/8", "r6 1:40+95/8 | free5"),
        ("-1 -3@a", "free6 free3"),
    ]);
}

#[test]
fn what_is_kept_is_bounded_and_reaches_back_far_enough() {
    check(&[
        ("1:0+256 2:0+256 3:0+128", "1:0+256 2:0+256 1=256 2=256 | 3:0+128 3=128"),
        ("-1@abcd -2@efgh", "keep1=256>1 free1 keep2=256>2 free2"),
        ("1!64+1@a", "1:64+1 1=65 | recall1=64>4"),
        // The one that was not used goes.
        ("-3@ij", "drop2 keep3=128>4 free3"),
        ("2!256+1@h", "miss2"),
        // Of one that began in its middle the first page is not whole; it serves those that could
        // not be shown more.
        ("-1 -2 3:100+200", "3:100+200 3=300 | free4 free5"),
        ("-3@qrst", "drop1 keep6=156>5 free6"),
        ("1!256+1@t", "1:256+1 1=257 | recall5=156>7"),
    ]);
    let (mut kept, mut moves) = (Kept::new(2, 1000), vec![]);
    let keep = Keep { session: 1, first_page: 2, keys: [7; kept::KEY_BYTES].to_vec().into() };
    kept.add(&keep, 1, 150..192, &mut moves);
    assert_eq!((kept.find(&keep.keys, 192, 149), kept.find(&keep.keys, 128, 150)), (None, None));
    assert_eq!((kept.find(&keep.keys, 192, 150), kept.bytes()), (Some((1, 150)), 84));
    // One that is larger than all there is room for, or has no whole page, is none.
    kept.add(&Keep { first_page: 9, ..keep.clone() }, 2, 0..640, &mut moves);
    kept.add(&Keep { first_page: u32::MAX, ..keep.clone() }, 2, 0..640, &mut moves);
    kept.add(&keep, 3, 10..191, &mut moves);
    assert_eq!(moves.len(), 1);
}

#[test]
fn names_that_are_none_are_faults() {
    let faults: [(&str, &str, Fault); 6] = [
        ("-1@a", "as it is closed", |feed| feed.closed.clear()),
        ("-1@a", "as it is closed", |feed| feed.keeps.push(feed.keeps[0].clone())),
        ("-1@a", "names of 32 bytes, found 33", |feed| feed.keeps[0].keys = vec![0; 33].into()),
        ("-1@a", "up to 256 names", |feed| {
            feed.keeps[0].keys = vec![0; 257 * kept::KEY_BYTES].into()
        }),
        ("1!64+2@a", "one fresh context", |feed| {
            (feed.contexts[0].fresh, feed.contexts[0].position) = (false, 3)
        }),
        ("1!64+2@a", "a name of 32 bytes, found 3", |feed| feed.recalls[0].key = vec![0; 3].into()),
    ];
    for (text, expected, change) in faults {
        let mut rig = Rig::new();
        let feed = rig.feed_of("1:0+3");
        rig.give(feed).expect("fair");
        let mut feed = rig.feed_of(text);
        change(&mut feed);
        let fault = rig.give(feed).expect_err(expected);
        assert!(fault.contains(expected), "{fault}");
    }
}

#[test]
fn what_is_no_feed_is_a_fault_and_changes_nothing() {
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
    let faults: [(&str, Fault); 9] = [
        ("expected taps of [1, 1]", |feed| feed.taps = None),
        ("expected taps of [0, 1]", |feed| feed.contexts.clear()),
        ("expected taps of [1, 1]", |feed| feed.taps.iter_mut().for_each(|taps| taps.rows = 2)),
        ("expected taps of [1, 1]", |feed| feed.taps.iter_mut().for_each(|taps| taps.columns = 2)),
        ("expected taps of [1, 1]", |feed| feed.taps.iter_mut().for_each(|taps| taps.r#type = 1)),
        ("expected embeddings of [1, 1]", |feed| feed.bonus = None),
        ("round behind 0, found 0", |feed| feed.round = 0),
        ("round 1 has no wants", |feed| (feed.wants, feed.bonus) = (vec![], None)),
        ("expected a temperature from 0, found NaN", |feed| feed.wants[0].temperature = f32::NAN),
    ];
    for (expected, change) in faults {
        let mut rig = Rig::new();
        let mut feed = rig.feed_of("1:0+1 1?1/8");
        change(&mut feed);
        let fault = rig.give(feed).expect_err(expected);
        assert!(fault.contains(expected), "{fault}");
    }
}

proptest! {
    /// Whatever a target says: rows are read once and in order (their bytes are compared), sessions
    /// are in a step once, pieces are bounded, rounds are answered in order, and nothing waits in
    /// the end.
    #[test]
    fn any_schedule(feeds in prop::collection::vec(
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
        assert!(!step.parts.is_empty());
    }
    let rows = |part: &Part| part.context;
    assert!(step.round.is_some() || step.parts.iter().map(rows).sum::<u32>() <= PIECE_ROWS);
    assert!(step.parts.iter().all(|part| part.context <= PIECE_ROWS));
    for (at, part) in step.parts.iter().enumerate() {
        rig.check_bytes(part);
        assert!(step.parts[..at].iter().all(|other| other.session != part.session));
        assert!(
            part.context + part.block > 0
                && part.position + part.context + part.block <= terms().context
        );
        let (slot, end) = read.get(&part.session).copied().unwrap_or((0, 0));
        assert!(slot < part.slot || end == part.position, "a gap");
        read.insert(part.session, (part.slot, part.position + part.context));
        let told = step.reach.iter().any(|reach| {
            reach.session == part.session && reach.position == part.position + part.context
        });
        assert_eq!(told, part.block == 0);
    }
    true
}
