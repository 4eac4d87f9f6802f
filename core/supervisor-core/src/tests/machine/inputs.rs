//! Effect of a schedule's inputs on the machine.

use super::process::kind;
use super::schedule::Input;
use super::{Happening, Machine};
use crate::tests::testing::*;

impl Machine {
    /// Longer than 60 lines: an arm per word of a schedule.
    pub(super) fn take_input(&mut self, input: Input) {
        self.write(format!("> {input}"));
        let numbers = input.numbers();
        let [first, second, ..] = numbers;
        let who = if first == 0 {
            WorkerId::Target
        } else {
            WorkerId::Drafter(self.core.drafters().current_slot())
        };
        let epoch = self.processes.get(&who).map(|process| process.epoch);
        if input.is_fault() {
            *self.seen.entry(format!("fault {}", input.word())).or_default() += 1;
        }
        match input.word() {
            "request" => self.submit(numbers),
            "crash" if epoch.is_some() => {
                let exit = [WorkerExit::Signal(9), WorkerExit::Signal(6), WorkerExit::Code(70)]
                    [self.random.below(3) as usize];
                self.die(who, exit);
            }
            "freeze" | "hang" => {
                if let Some(process) = self.processes.get_mut(&who) {
                    process.was_faulty = true;
                    (process.frozen, process.hung) =
                        (input.word() == "freeze", process.hung || input.word() == "hang");
                    let epoch = process.epoch;
                    if input.word() == "freeze" {
                        self.post(second, Happening::Thaws(who, epoch));
                    }
                }
            }
            "loop" => {
                self.faults.loops[first as usize] = second;
                if epoch.is_some() {
                    self.die(who, WorkerExit::Signal(11));
                }
            }
            "unloadable" => {
                self.faults.unloadable_until[first as usize] = self.now + second;
                self.files.damaged[first as usize] += 2;
                if epoch.is_some() {
                    self.die(who, WorkerExit::Signal(9));
                }
            }
            "unstartable" => self.faults.unstartable[first as usize] = second,
            "slow_load" => self.faults.slow_load_ms[first as usize] = second,
            "slow_prefill" => self.faults.slow_until = self.now + first,
            "unreached" => self.faults.unreached_until = self.now + first,
            "refuse" => self.faults.refuses = true,
            "eject" => self.move_link(LinkPhase::Ejected),
            "lose" => self.move_link(LinkPhase::Lost),
            "late" => {
                self.faults.late_until = self.now + first;
                self.move_link(LinkPhase::Suspect);
            }
            "order" => self.order(first, second),
            "dies" if !self.absent && !self.core.is_stopping() => self.leave(first),
            "free" => {
                self.post(0, Happening::Message(Event::MemoryRead { available_bytes: Some(first) }))
            }
            "measured" => self.faults.gain = (first > 0).then_some(first),
            "command" => self.command(first, second),
            "policy" => self.set_policy(first),
            "pressure" => self.faults.pressure = (first, self.now + second),
            "asleep" => self.sleep(first),
            "starved" if !self.absent => {
                self.unresponsive_until = self.unresponsive_until.max(self.now + first);
                self.starved_ms = self.unresponsive_until - self.now;
                // It delivers nothing meanwhile.
                self.delivered.behind_since = None;
            }
            "silence" => {
                self.faults.silent_until[first as usize] = self.now + second;
                for (worker, process) in &mut self.processes {
                    process.was_faulty |= kind(*worker) == first as usize;
                }
            }
            _ => {}
        }
    }

    /// The machine sleeps: nothing happens on it meanwhile, but its clock goes on.
    pub(super) fn sleep(&mut self, ms: u64) {
        self.agenda = std::mem::take(&mut self.agenda)
            .into_iter()
            .map(|((at, number), what)| ((at + ms, number), what))
            .collect();
        for process in self.processes.values_mut() {
            process.last_message_at += ms;
            process.stepped_at += ms;
            process.loaded_at += ms;
        }
        // The shell sees the gap when it wakes.
        self.unresponsive_until += if self.unresponsive_until > self.now { ms } else { 0 };
        self.starved_ms = self.starved_ms.max(ms);
        self.delivered.behind_since = None;
        self.now += ms;
    }

    pub(super) fn submit(&mut self, [prompt, max, wish, deadline, hangup]: [u64; 5]) {
        let ticket = Ticket(self.submitted);
        self.submitted += 1;
        let summary = RequestSummary {
            // Of two keys, or of none.
            key: KeyId(prompt % 3),
            prompt_tokens: prompt as u32,
            max_tokens: max as u32,
            context_tokens: prompt as u32,
            deadline: (deadline > 0).then(|| Millis(self.now + deadline)),
            wish: match wish {
                3 => RouteWish::Speculative,
                4 => RouteWish::Plain,
                _ => RouteWish::Auto,
            },
            // Every fourth has an image.
            patches: if prompt % 4 == 3 { prompt / 4 } else { 0 },
            resumed: false,
            fingerprint: Fingerprint(ticket.0),
            model: None,
        };
        if hangup > 0 {
            self.post(hangup, Happening::HangsUp(ticket));
        }
        self.post(0, Happening::Message(Event::Submitted { ticket, summary }));
    }

    pub(super) fn order(&mut self, verb: u64, model: u64) {
        self.last_order += 1;
        let order_id = OrderId(self.last_order);
        let model = ["", "/d", "/e"][model as usize % 3].to_owned();
        let (order, done) = match verb {
            0 => (DrafterOrder::Stop, "stopped"),
            1 => (DrafterOrder::Start { model }, "started"),
            _ => (DrafterOrder::Swap { model }, "swapped"),
        };
        self.orders.insert(order_id, done);
        self.post(0, Happening::Message(Event::DrafterOrdered { order_id, order }));
    }

    pub(super) fn command(&mut self, what: u64, now: u64) {
        self.last_order += 1;
        let order_id = OrderId(self.last_order);
        let parts = [
            ServiceProcess::Target,
            ServiceProcess::Drafter,
            ServiceProcess::Gateway,
            ServiceProcess::Supervisor,
        ];
        let order = match what {
            4 => OperatorOrder::Drain,
            5 | 6 => OperatorOrder::Resume,
            7 => target_swap("/m", &["/d"], now > 0),
            _ => OperatorOrder::Restart { process: parts[what as usize % 4], at_once: now > 0 },
        };
        self.orders.insert(order_id, "commanded");
        self.post(0, Happening::Message(Event::Ordered { order_id, order }));
    }

    pub(super) fn set_policy(&mut self, setting: u64) {
        let changes = [
            PolicyChange::Force(Force::Auto),
            PolicyChange::Force(Force::Auto),
            PolicyChange::Force(Force::Plain),
            PolicyChange::Force(Force::Speculative),
            PolicyChange::MaxConcurrent(Auto::Is(2)),
            PolicyChange::MaxConcurrent(Auto::Auto),
            PolicyChange::KvPressure(0.5),
            PolicyChange::MaxContext(Auto::Is(4_096)),
        ];
        let change = changes[setting as usize % changes.len()];
        self.last_order += 1;
        let order_id = OrderId(self.last_order);
        self.orders.insert(order_id, "set");
        self.post(0, Happening::Message(Event::PolicySet { order_id, change }));
    }
}
