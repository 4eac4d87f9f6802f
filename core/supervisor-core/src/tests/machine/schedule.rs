//! Inputs of a simulated machine and their times: drawn from a seed, or read from a scenario file.
//! One line each, `12.345 crash target`; a schedule that fails is made shorter and written down in
//! this form.

use std::fmt;
use std::str::FromStr;

use crate::tests::testing::Random;

/// Words of a schedule, each with the names of its numbers.
const WORDS: [(&str, &[&str]); 24] = [
    ("request", &["prompt", "max", "wish", "deadline_ms", "hangup_ms"]),
    ("crash", &["who"]),
    ("freeze", &["who", "ms"]),
    ("hang", &["who"]),
    ("loop", &["who", "times"]),
    ("unloadable", &["who", "ms"]),
    ("unstartable", &["who", "times"]),
    ("slow_load", &["who", "ms"]),
    ("slow_prefill", &["ms"]),
    ("unreached", &["ms"]),
    ("refuse", &[]),
    ("eject", &[]),
    ("lose", &[]),
    ("late", &["ms"]),
    ("order", &["verb", "model"]),
    ("pressure", &["percent", "ms"]),
    ("asleep", &["ms"]),
    ("starved", &["ms"]),
    ("silence", &["who", "ms"]),
    ("dies", &["gap_ms"]),
    ("free", &["bytes"]),
    ("measured", &["percent"]),
    ("command", &["what", "now"]),
    ("policy", &["setting"]),
];

/// Something that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Input {
    /// Milliseconds from the start.
    pub(super) at: u64,
    word: usize,
    numbers: [u64; 5],
}

impl Input {
    pub(super) fn new(at: u64, word: &str, numbers: &[u64]) -> Self {
        let word = WORDS.iter().position(|(name, _)| *name == word).expect("a word of the list");
        assert_eq!(numbers.len(), WORDS[word].1.len(), "{} has its numbers", WORDS[word].0);
        let mut all = [0; 5];
        all[..numbers.len()].copy_from_slice(numbers);
        Self { at, word, numbers: all }
    }

    pub(super) fn word(&self) -> &'static str {
        WORDS[self.word].0
    }

    /// Numbers of the input, in the order of the list.
    pub(super) fn numbers(&self) -> [u64; 5] {
        self.numbers
    }

    /// Whether it is a fault of the machine: not a request, nor an operator's word.
    pub(super) fn is_fault(&self) -> bool {
        !matches!(self.word(), "request" | "order" | "command" | "policy")
    }
}

impl fmt::Display for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, names) = WORDS[self.word];
        write!(f, "{}.{:03} {word}", self.at / 1_000, self.at % 1_000)?;
        names.iter().zip(self.numbers).try_for_each(|(name, number)| write!(f, " {name}={number}"))
    }
}

impl FromStr for Input {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let wrong = |what: &str| {
            format!("expected a line like `1.250 crash who=0`, found {what} in `{line}`")
        };
        let mut parts = line.split_whitespace();
        let at = parts
            .next()
            .and_then(|text| text.parse::<f64>().ok())
            .ok_or_else(|| wrong("no time"))?;
        let name = parts.next().ok_or_else(|| wrong("no word"))?;
        let word = WORDS
            .iter()
            .position(|(known, _)| *known == name)
            .ok_or_else(|| wrong("an unknown word"))?;
        let mut numbers = [0; 5];
        for (place, expected) in WORDS[word].1.iter().enumerate() {
            let (name, number) = parts
                .next()
                .and_then(|part| part.split_once('='))
                .ok_or_else(|| wrong("too few numbers"))?;
            numbers[place] = number
                .parse()
                .ok()
                .filter(|_| name == *expected)
                .ok_or_else(|| wrong("another number"))?;
        }
        Ok(Self { at: (at * 1_000.0).round() as u64, word, numbers })
    }
}

/// How much happens in a schedule.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    /// Length, in milliseconds.
    pub(super) ms: u64,
    /// Mean time between requests.
    pub(super) request_ms: u64,
    /// Mean time between faults; 0 is none.
    pub(super) fault_ms: u64,
    /// Mean time between operators' words; 0 is none.
    pub(super) order_ms: u64,
}

/// Draws a schedule, in order of time.
pub(super) fn draw(random: &mut Random, size: Size) -> Vec<Input> {
    let mut all = Vec::new();
    let mut at = 0;
    while at < size.ms {
        at += 1 + random.below(2 * size.request_ms);
        // Now and then many at once.
        for _ in 0..if random.below(60) == 0 { 16 } else { 1 } {
            all.push(request(random, at));
        }
    }
    for (mean, draw) in
        [(size.fault_ms, fault as fn(&mut Random, u64) -> Input), (size.order_ms, order)]
    {
        let mut at = 0;
        while mean > 0 && at < size.ms {
            at += 1 + random.below(2 * mean);
            all.push(draw(random, at));
        }
    }
    all.sort_by_key(|input| input.at);
    all
}

fn request(random: &mut Random, at: u64) -> Input {
    let rarely = |random: &mut Random, most: u64| {
        if random.below(8) == 0 { 1 + random.below(most) } else { 0 }
    };
    let prompt =
        if random.below(20) == 0 { 900 + random.below(300) } else { 1 + random.below(500) };
    // 0 and 1 leave the choice to the supervisor.
    let wish = random.below(5);
    let (max, deadline, hangup) =
        (1 + random.below(400), rarely(random, 8_000), rarely(random, 3_000));
    Input::new(at, "request", &[prompt, max, wish, deadline, hangup])
}

fn fault(random: &mut Random, at: u64) -> Input {
    let who = u64::from(random.below(3) > 0);
    match random.below(30) {
        0..=4 => Input::new(at, "crash", &[who]),
        5 | 6 => Input::new(at, "freeze", &[who, 100 + random.below(20_000)]),
        7 => Input::new(at, "hang", &[who]),
        8 => Input::new(at, "loop", &[who, 1 + random.below(9)]),
        9 => Input::new(at, "unstartable", &[who, 1 + random.below(2)]),
        10 => Input::new(at, "slow_load", &[who, 1_000 + random.below(60_000)]),
        11 => Input::new(at, "slow_prefill", &[1_000 + random.below(120_000)]),
        12 => Input::new(at, "refuse", &[]),
        13 => Input::new(at, "eject", &[]),
        14 | 15 => Input::new(at, "lose", &[]),
        16 => Input::new(at, "late", &[500 + random.below(20_000)]),
        17 => Input::new(at, "pressure", &[70 + random.below(30), 500 + random.below(20_000)]),
        18 => Input::new(at, "asleep", &[1_000 << random.below(12)]),
        19 | 20 => Input::new(at, "starved", &[100 + random.below(6_000)]),
        // Rarely longer than the workers' lease.
        21 | 22 => Input::new(
            at,
            "dies",
            &[if random.below(12) == 0 { 40_000 } else { 50 + random.below(4_000) }],
        ),
        23 => Input::new(at, "free", &[random.below(1_500)]),
        24 | 25 => Input::new(at, "measured", &[random.below(4) * 50]),
        28 => Input::new(at, "unloadable", &[who, 1_000 + random.below(90_000)]),
        26 | 27 => Input::new(at, "unreached", &[500 + random.below(20_000)]),
        _ => Input::new(at, "silence", &[who, 100 + random.below(9_000)]),
    }
}

fn order(random: &mut Random, at: u64) -> Input {
    match random.below(6) {
        0..=2 => Input::new(at, "order", &[random.below(3), random.below(3)]),
        3 | 4 => Input::new(at, "command", &[random.below(8), random.below(2)]),
        _ => Input::new(at, "policy", &[random.below(8)]),
    }
}

/// The shortest schedule found that still `fails`, by leaving parts out, in at most `tries` tries.
pub(super) fn shrink(
    mut inputs: Vec<Input>,
    mut tries: usize,
    mut fails: impl FnMut(&[Input]) -> bool,
) -> Vec<Input> {
    let mut part = inputs.len().div_ceil(2);
    while part > 0 {
        let (mut from, mut shorter) = (0, false);
        while from < inputs.len() && tries > 0 {
            let mut without = inputs.clone();
            without.drain(from..(from + part).min(inputs.len()));
            tries -= 1;
            if fails(&without) {
                (inputs, shorter) = (without, true);
            } else {
                from += part;
            }
        }
        part = if part == 1 && !shorter || tries == 0 { 0 } else { (part / 2).max(1) };
    }
    inputs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_reads_back_as_it_was_written() {
        let size = Size { ms: 600_000, request_ms: 500, fault_ms: 500, order_ms: 2_000 };
        let inputs = draw(&mut Random::new(7), size);
        assert!(inputs.len() > 2_000, "{}", inputs.len());
        assert!(WORDS.iter().all(|(word, _)| inputs.iter().any(|input| input.word() == *word)));
        for input in inputs {
            assert_eq!(input.to_string().parse(), Ok(input));
        }
        for line in ["", "1.0", "1.0 crush who=0", "1.0 crash", "1.0 crash whom=0", "x crash who=0"]
        {
            assert!(line.parse::<Input>().is_err(), "{line}");
        }
    }

    #[test]
    fn inputs_that_do_not_matter_are_left_out() {
        let inputs: Vec<Input> = (0..100).map(|at| Input::new(at, "crash", &[at % 2])).collect();
        let needs = |inputs: &[Input]| {
            [17, 18, 80].iter().all(|at| inputs.iter().any(|input| input.at == *at))
        };
        let left: Vec<u64> = shrink(inputs, 1_000, needs).iter().map(|input| input.at).collect();
        assert_eq!(left, [17, 18, 80]);
    }
}
