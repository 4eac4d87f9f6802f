//! A worker of the test, and a drafter that is played to it: right, wrong, silent, breaking rules,
//! gone.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use paceline_link::{End, LinkError};
use paceline_proto::internal::v1::{Heartbeat, KvUse, Policy, PolicyForce, SetPolicyRequest};
use paceline_vocabulary::link::{DraftRequest, Feed, ProposalKind, Welcome};
use tonic::Streaming;

use super::plan::{Dice, Mood, Subject};
use super::stage::drafter::{attach, propose_ids, propose_rows, welcome};
use super::stage::{STAMP, Worker};

pub const BLOCK: u32 = 16;

/// Rules of a scripted drafter; its thread and the test share it.
pub struct Play {
    /// Ids of the vocabulary.
    pub vocab: u32,
    pub mood: Mood,
    pub dice: Dice,
    /// Prompts with their answers, and of each session those that it may be one of.
    pub known: Vec<Vec<u32>>,
    pub sessions: HashMap<u64, Vec<usize>>,
    pub gone: bool,
}

impl Play {
    pub fn ids(&mut self, request: &DraftRequest) -> Vec<u32> {
        let (at, length) = (request.position as usize, request.block as usize - 1);
        let Self { vocab, mood, dice, known, sessions, .. } = self;
        let vocab = *vocab;
        let may_be = sessions.entry(request.session).or_insert_with(|| (0..known.len()).collect());
        may_be.retain(|stream| known[*stream].get(at) == Some(&request.bonus_id));
        let mut ids: Vec<u32> = match may_be.first() {
            Some(stream) => known[*stream][at + 1..].iter().copied().take(length).collect(),
            None => (0..length).map(|_| dice.roll(u64::from(vocab)) as u32).collect(),
        };
        let wrong_from = match mood {
            Mood::Right => ids.len(),
            Mood::HalfRight => dice.roll(4) as usize,
            Mood::Forgets if request.position.is_multiple_of(2) => return vec![],
            _ => 0,
        };
        ids.iter_mut().skip(wrong_from).for_each(|id| *id = dice.roll(u64::from(vocab)) as u32);
        if *mood == Mood::BreaksARule {
            ids.truncate(length - 1);
            ids.push(vocab);
        }
        ids
    }
}

/// A worker of the test, and the drafter that is linked with it.
pub struct House {
    pub subject: &'static Subject,
    pub worker: Worker,
    pub play: Arc<Mutex<Play>>,
    /// An open `Watch` stream: the worker's lease does not run while there is one.
    _watch: Streaming<Heartbeat>,
    pub links: Cell<u64>,
    pub policies: Cell<u64>,
}

impl House {
    pub async fn open(subject: &'static Subject, budget: u64, known: &[Vec<u32>]) -> Self {
        let (budget, drafter) = (budget.to_string(), subject.drafter());
        let checkpoint = subject.dir();
        let mut worker = Worker::start(
            checkpoint.path(),
            &[
                ("PACELINE_KV__BUDGET_BYTES", &budget),
                ("PACELINE_DRAFTER__MODEL", &drafter),
                ("PACELINE_TARGET__PRODUCTS", subject.products),
            ],
        );
        let (_, watch) = worker.ready().await;
        let play = Play {
            vocab: subject.vocab,
            mood: Mood::Right,
            dice: Dice(1),
            known: known.to_vec(),
            sessions: HashMap::new(),
            gone: true,
        };
        Self {
            subject,
            worker,
            play: Arc::new(Mutex::new(play)),
            _watch: watch,
            links: Cell::new(0),
            policies: Cell::new(0),
        }
    }

    /// Links another drafter.
    pub fn attach(&self, kind: ProposalKind) {
        let generation = self.links.get() + 1;
        self.links.set(generation);
        let hidden = self.subject.hidden;
        let welcome = Welcome {
            hidden_size: hidden,
            feature_layers: self.subject.feature_layers.to_vec(),
            block_size: BLOCK,
            ..welcome(generation, kind)
        };
        let (play, mut noise) = (self.play.clone(), generation);
        play.lock().expect("not poisoned").gone = false;
        let script = move |end: &mut End, feed: &Feed| -> Result<bool, LinkError> {
            let mut play = play.lock().expect("not poisoned");
            let mood = play.mood;
            if feed.round > 0 && matches!(mood, Mood::Dies | Mood::BreaksARule) {
                play.gone = true;
            }
            match mood {
                Mood::Silent if feed.round > 0 => Ok(true),
                Mood::Dies if feed.round > 0 => Ok(false),
                Mood::Right | Mood::HalfRight | Mood::Lies if kind == ProposalKind::Hidden => {
                    propose_rows(end, feed, hidden, &mut noise)
                }
                _ => {
                    let play = RefCell::new(play);
                    propose_ids(end, feed, |request| play.borrow_mut().ids(request))
                }
            }
        };
        attach(&self.worker, generation, Some(welcome), Box::new(script));
    }

    pub fn set_mood(&self, mood: Mood, seed: u64) {
        let mut play = self.play.lock().expect("not poisoned");
        (play.mood, play.dice) = (mood, Dice(seed));
    }

    pub async fn set_policy(&self, force: PolicyForce) {
        self.policies.set(self.policies.get() + 1);
        // Drafts are made at any pressure.
        let policy = Policy {
            epoch: self.policies.get(),
            force: force.into(),
            kv_pressure: 1.0,
            ..Policy::default()
        };
        let request = SetPolicyRequest { stamp: Some(STAMP), policy: Some(policy) };
        self.worker.client.clone().set_policy(request).await.expect("taken");
    }

    pub async fn kv(&self) -> (u32, KvUse) {
        let now = self.worker.figures().await;
        (now.sequences, now.kv.expect("kv"))
    }

    /// Preemptions, according to the log of the worker.
    pub fn preemptions(&self) -> usize {
        self.worker.log().lines().filter(|line| line.contains("request preempted")).count()
    }
}
