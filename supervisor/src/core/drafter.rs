//! The drafters: whether one is to run, in which place, and when another takes over. A guest that
//! may fall at any instant: nothing here can reach the target's state or a request (I3).
//!
//! Orders change what is wanted; [`Drafters::settle`] brings what is there closer to it, whatever
//! brought the difference about. A swap:
//!
//! ```text
//!  order ──▶ other place: spawn, load, describe ──▶ link handed over ──▶ UP: it is the current one; the old one is stopped
//!                    └───── falls, is refused, cannot be linked ──▶ it is ended, the old one goes on, the order fails
//! ```

pub mod lifetime;
mod orders;
mod outlook;
mod takeover;

use paceline_process::config::DrafterStart;
use paceline_proto::internal::v1::LinkReport;
use paceline_proto::status::Reason;
use paceline_vocabulary::Millis;
use paceline_vocabulary::{Epoch, Term};

use super::denial::{Outage, Refused};
use super::link::{Ends, Link, News};
use super::seat::{Seat, WorkerId};
use super::worker::{self, EndWhy, Kind, Phase, Worker};
use super::{Action, Settings};
use lifetime::Lifetime;
pub use lifetime::Load;
use orders::Waiting;
pub use orders::{Call, Order};
use takeover::TakeOver;

/// Times the link of a drafter that is to take over may fail.
const SWAP_LOSSES: u32 = 3;

/// The configured drafter.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Its directory; empty is none.
    pub model: String,
    /// `drafter.start`
    pub start: DrafterStart,
    /// `drafter.idle_stop_s`; 0 is never.
    pub idle_stop_ms: u64,
}

/// What drafters have to know of the rest.
#[derive(Clone, Debug)]
pub struct Around {
    /// The target's life, if it has loaded, and whether it can be spoken to.
    pub target: Option<(Epoch, bool)>,
    /// Why the target does not come up.
    pub failed: Option<Outage>,
    /// The service was not asked to stop.
    pub serving: bool,
    /// Who would use one, and whether there is memory for it.
    pub load: Load,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    /// None is to run; why.
    Nobody(&'static str),
    /// One is, from the first request on that would use it.
    AtFirstUse,
    Somebody,
}

/// The target refused the current drafter.
#[derive(Clone, Debug)]
struct Misfit {
    target: Epoch,
    reason: String,
}

/// A drafter that is to take over.
#[derive(Clone, Debug)]
struct Incoming {
    seat: Seat,
    model: String,
    started: bool,
}

/// All drafters there are.
#[derive(Debug)]
pub struct Drafters {
    seats: [Worker; 2],
    links: [Link; 2],
    current: Seat,
    /// Directory of the current one, or of the one that would be; empty is none.
    model: String,
    wanted: Wanted,
    lifetime: Lifetime,
    /// Bytes of the newest that has loaded.
    need_bytes: u64,
    misfit: Option<Misfit>,
    incoming: Option<Incoming>,
    /// Why the current link was last not to be had; empty once it is.
    trouble: String,
    calls: Vec<Waiting>,
    /// Number of the newest link.
    generation: u64,
    takeover: Option<TakeOver>,
}

impl Drafters {
    /// Nothing runs yet. Links are numbered behind those of every earlier term.
    pub fn new(settings: &Settings, plan: Plan, term: Term) -> Self {
        let worker = || {
            Worker::new(
                Kind::Drafter,
                settings.patience,
                settings.restarts,
                settings.restart_period_ms,
            )
        };
        let wanted = match plan.start {
            _ if plan.model.is_empty() => Wanted::Nobody("no drafter is configured"),
            DrafterStart::Eager => Wanted::Somebody,
            DrafterStart::Lazy => Wanted::AtFirstUse,
            DrafterStart::Manual => Wanted::Nobody("an operator starts it (drafter.start)"),
        };
        Self {
            seats: [worker(), worker()],
            links: Default::default(),
            current: Seat::First,
            model: plan.model,
            wanted,
            lifetime: Lifetime::new(plan.idle_stop_ms),
            need_bytes: 0,
            misfit: None,
            incoming: None,
            trouble: String::new(),
            calls: Vec::new(),
            generation: term.0 << 32,
            takeover: None,
        }
    }

    /// News of the drafter in `seat`.
    pub fn on_worker(
        &mut self,
        seat: Seat,
        event: worker::Event,
        now: Millis,
        out: &mut Vec<Action>,
    ) {
        let found =
            matches!(event, worker::Event::Found { .. }) && self.seats[seat.idx()].is_gone();
        let actions = self.seats[seat.idx()].on_event(event, now);
        pass_on(seat, actions, out);
        if found {
            self.found(seat);
        }
    }

    /// The target's heartbeat came with this report of its links.
    pub fn on_report(&mut self, report: &LinkReport, now: Millis, out: &mut Vec<Action>) {
        // The one that takes over first: when it is up the other is not lost, but replaced.
        for seat in self.in_use() {
            // A switch may have ended this one's use.
            if self.in_use().any(|used| used == seat) {
                let news = self.links[seat.idx()].reported(report, now);
                self.heard(seat, news, now, out);
            }
        }
    }

    /// Both workers have their ends of link `generation`, or why not.
    pub fn on_connected(
        &mut self,
        generation: u64,
        failure: Option<String>,
        now: Millis,
        out: &mut Vec<Action>,
    ) {
        for seat in Seat::ALL {
            let news = self.links[seat.idx()].connected(generation, failure.clone(), now);
            self.heard(seat, news, now, out);
        }
    }

    /// A request came that would use a drafter.
    pub fn missed(&mut self) {
        self.lifetime.missed();
        if self.wanted == Wanted::AtFirstUse {
            self.wanted = Wanted::Somebody;
        }
    }

    /// Places whose drafter is to run: the one that takes over, then the current one.
    fn in_use(&self) -> impl Iterator<Item = Seat> + use<> {
        let works = self.wanted == Wanted::Somebody
            && self.misfit.is_none()
            && self.lifetime.rest().is_none();
        let current = works.then_some(self.current);
        self.incoming.as_ref().map(|incoming| incoming.seat).into_iter().chain(current)
    }

    fn heard(&mut self, seat: Seat, news: Option<News>, now: Millis, out: &mut Vec<Action>) {
        let Some(news) = news else { return };
        let link = &self.links[seat.idx()];
        let generation = link.generation();
        out.push(Action::LogLink {
            seat,
            generation,
            to: link.name(),
            cause: news.cause().to_owned(),
        });
        let takes_over = self.incoming.as_ref().is_some_and(|incoming| incoming.seat == seat);
        match news {
            News::Up { .. } => {
                self.trouble.clear();
                if takes_over {
                    self.switch();
                }
            }
            News::Refused(reason) if takes_over => {
                self.fail_swap(Refused::new(Reason::DrafterIncompatible, reason), out)
            }
            News::Refused(reason) => {
                let target = link.ends().map_or(Epoch(0), |ends| ends.target);
                self.misfit = Some(Misfit { target, reason });
            }
            News::Ejected(reason) => {
                if let Some(epoch) = self.seats[seat.idx()].life().map(|life| life.epoch) {
                    self.on_worker(
                        seat,
                        worker::Event::Condemned { epoch, cause: reason.clone() },
                        now,
                        out,
                    );
                }
                if takes_over {
                    self.fail_swap(
                        Refused::new(
                            Reason::DrafterFailed,
                            format!("it broke the link's protocol: {reason}"),
                        ),
                        out,
                    );
                }
            }
            News::Lost(cause) if takes_over && link.losses() >= SWAP_LOSSES => {
                self.fail_swap(
                    Refused::new(
                        Reason::DrafterFailed,
                        format!("it cannot be linked to the target: {cause}"),
                    ),
                    out,
                );
            }
            News::Lost(cause) => self.trouble = cause,
            News::Late(_) | News::InTime => {}
        }
    }

    /// Brings what is there closer to what is wanted.
    pub fn settle(&mut self, around: &Around, now: Millis, out: &mut Vec<Action>) {
        // Another life of the target may be another model.
        if let (Some((target, true)), Some(misfit)) = (around.target, &self.misfit)
            && misfit.target != target
        {
            self.misfit = None;
        }
        self.judge_takeover();
        self.judge_swap(around, now, out);
        self.judge_rest(around, now, out);
        self.end_others(now, out);
        if around.serving {
            // Who waits for one to be gone hears of it before the next takes its place.
            self.answer_calls(around, now, out);
            self.start_missing(now, out);
        }
        self.link_up(around, now, out);
        self.answer_calls(around, now, out);
    }

    /// Whether the wanted one works or rests.
    fn judge_rest(&mut self, around: &Around, now: Millis, out: &mut Vec<Action>) {
        if self.wanted != Wanted::Somebody {
            return self.lifetime.begin_anew();
        }
        if !around.serving {
            return self.lifetime.stop_clocks();
        }
        let worker = self.current();
        let up = matches!(worker.phase(), Phase::Ready { .. } | Phase::Suspect { .. });
        if let (true, Some(life)) = (up, worker.life()) {
            let memory = life
                .beat
                .as_ref()
                .and_then(|beat| beat.memory)
                .map_or(0, |memory| memory.active_bytes);
            let weights = life.described.as_ref().map_or(0, |described| described.weight_bytes());
            self.need_bytes = memory.max(weights);
        }
        let before = self.lifetime.rest();
        // Before it is linked nobody can use it.
        let linked = up && self.links[self.current.idx()].is_up();
        self.lifetime.judge(&around.load, linked, now);
        if let (None, Some(rest)) = (before, self.lifetime.rest()) {
            self.give_up_calls(rest.why(), out);
        }
    }

    fn end_others(&mut self, now: Millis, out: &mut Vec<Action>) {
        for seat in Seat::ALL {
            let ended = matches!(
                self.seats[seat.idx()].phase(),
                Phase::Stopped | Phase::Ending { why: EndWhy::Asked(_), .. }
            );
            if ended || self.in_use().any(|used| used == seat) {
                continue;
            }
            let cause = match self.wanted {
                Wanted::Nobody(why) => why,
                _ if self.lifetime.rest().is_some() => {
                    self.lifetime.rest().map_or("", lifetime::Rest::why)
                }
                _ if seat == self.current => "the target refuses it",
                _ => "another has its place",
            };
            self.on_worker(seat, worker::Event::EndAsked { cause }, now, out);
        }
    }

    fn start_missing(&mut self, now: Millis, out: &mut Vec<Action>) {
        for seat in self.in_use() {
            if !self.seats[seat.idx()].is_gone() {
                continue;
            }
            let model = match &mut self.incoming {
                Some(incoming) if incoming.seat == seat => {
                    incoming.started = true;
                    incoming.model.clone()
                }
                _ => self.model.clone(),
            };
            // One that is to take over gets one life: its fall is the end of the swap.
            self.seats[seat.idx()].live_once(seat != self.current);
            self.on_worker(seat, worker::Event::StartAsked { model }, now, out);
        }
    }

    fn link_up(&mut self, around: &Around, now: Millis, out: &mut Vec<Action>) {
        let used: Vec<Seat> = self.in_use().collect();
        for seat in Seat::ALL {
            let worker = &self.seats[seat.idx()];
            let there = used.contains(&seat)
                && matches!(worker.phase(), Phase::Ready { .. } | Phase::Suspect { .. });
            let ends = match (around.target, worker.life()) {
                (Some((target, _)), Some(life)) if there => {
                    Some(Ends { target, drafter: life.epoch })
                }
                _ => None,
            };
            self.links[seat.idx()].between(ends);
        }
        // One at a time: the target greets the newest only. A service that stops makes none.
        if !around.serving
            || !matches!(around.target, Some((_, true)))
            || self.links.iter().any(Link::is_being_made)
        {
            return;
        }
        for seat in used {
            let ready = matches!(self.seats[seat.idx()].phase(), Phase::Ready { .. });
            if let (true, Some(ends)) = (ready, self.links[seat.idx()].due()) {
                self.generation += 1;
                self.links[seat.idx()].hand(self.generation, now);
                return out.push(Action::Connect { generation: self.generation, seat, ends });
            }
        }
    }

    /// Time has passed: does what is due.
    pub fn on_time(&mut self, now: Millis, out: &mut Vec<Action>) {
        for seat in Seat::ALL {
            let actions = self.seats[seat.idx()].on_time(now);
            pass_on(seat, actions, out);
            let news = self.links[seat.idx()].on_time(now);
            self.heard(seat, news, now, out);
        }
    }

    /// When [`Drafters::on_time`] has something to do.
    pub fn next_deadline(&self) -> Option<Millis> {
        let workers = self.seats.iter().filter_map(Worker::next_deadline);
        workers
            .chain(self.links.iter().filter_map(Link::next_deadline))
            .chain(self.lifetime.next_deadline())
            .min()
    }

    /// We slept, or were starved: silence until `now` proves nothing.
    pub fn forgive(&mut self, now: Millis) {
        self.seats.iter_mut().for_each(|worker| worker.forgive(now));
        self.links.iter_mut().for_each(|link| link.forgive(now));
        self.lifetime.forgive(now);
    }

    /// Tells both places something that concerns the whole service.
    pub fn tell_all(&mut self, event: &worker::Event, now: Millis, out: &mut Vec<Action>) {
        for seat in Seat::ALL {
            self.on_worker(seat, event.clone(), now, out);
        }
    }

    /// Sends SIGKILL to those that are being ended.
    pub fn kill(&mut self, now: Millis, out: &mut Vec<Action>) {
        for seat in Seat::ALL {
            if let Phase::Ending { .. } = self.seats[seat.idx()].phase() {
                self.on_worker(seat, worker::Event::KillAsked, now, out);
            }
        }
    }

    /// Whether none is left, or none that can be ended.
    pub fn are_stopped(&self) -> bool {
        self.seats.iter().all(|worker| worker.phase() == Phase::Stopped)
    }

    /// Bytes the drafter needs, as far as is known.
    pub fn need_bytes(&self) -> u64 {
        self.need_bytes
    }

    /// The drafter in `seat`.
    pub fn seat(&self, seat: Seat) -> &Worker {
        &self.seats[seat.idx()]
    }

    /// The place of the one that serves, or would.
    pub fn current_seat(&self) -> Seat {
        self.current
    }

    /// The one that serves, or would.
    pub fn current(&self) -> &Worker {
        &self.seats[self.current.idx()]
    }
}

fn pass_on(seat: Seat, actions: Vec<worker::Action>, out: &mut Vec<Action>) {
    // Nobody is served by a drafter alone, so nobody has to be told of its end (I3).
    let heard =
        actions.into_iter().filter(|action| !matches!(action, worker::Action::Abandon { .. }));
    out.extend(heard.map(|action| Action::Worker(WorkerId::Drafter(seat), action)));
}
