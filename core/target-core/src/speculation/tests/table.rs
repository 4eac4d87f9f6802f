//! A table of all lanes on all machines and texts, for comparisons between versions of the
//! controller. `cargo test -p paceline-target-core controller_table -- --ignored --nocapture`

use std::fmt::Write as _;

use super::recorded::sweep;
use super::restart::first_over_later;
use super::simulation::*;

/// As Apple's GPU with quantized weights: few rows are nearly free, and wide blocks lose.
pub(super) const METAL: Machine = Machine {
    name: "metal",
    step_us: |rows, _| {
        if rows < 4.5 { 30_000.0 + 400.0 * rows } else { 30_000.0 + 4_200.0 * (rows - 4.0) }
    },
    draft_us: |rows, _| 3_500.0 + 60.0 * rows,
    read_us: 60.0,
    beside: [1.5, 1.5],
    hidden: 0.0,
};

/// Mean over cells of the logarithm of a throughput over the better lane's.
#[derive(Default)]
struct Summary {
    /// The ratios, and the requests at once.
    ratios: Vec<(f64, usize)>,
    worst: Vec<(f64, String)>,
}

/// Requests at once of a cell.
fn requests(cell: &str) -> usize {
    cell.rsplit('x').next().and_then(|count| count.parse().ok()).expect("a number")
}

fn geometric_mean(ratios: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = ratios.fold((0.0, 0.0), |(sum, count), one| (sum + one.ln(), count + 1.0));
    (sum / count).exp()
}

impl Summary {
    /// Adds a cell of `tokens` tokens, and returns its line.
    fn add(&mut self, cell: String, tokens: f64, [plain, forced, routed]: [f64; 3]) -> String {
        let over = plain.min(forced) / routed;
        self.ratios.push((over, requests(&cell)));
        self.worst.push((over, cell.clone()));
        let rate = |seconds: f64| tokens / seconds;
        format!(
            "{cell:36} plain {:9.1} forced {:9.1} routed {:9.1} routed/best {over:.3}\n",
            rate(plain),
            rate(forced),
            rate(routed)
        )
    }

    fn end(mut self, name: &str) -> String {
        let all = self.ratios.iter();
        let mean = geometric_mean(all.clone().map(|(over, _)| *over));
        let low = all.clone().filter(|(over, _)| *over < 0.95).count();
        let by_requests = [1, 2, 4, 8, 16].map(|requests| {
            geometric_mean(all.clone().filter(|one| one.1 == requests).map(|one| one.0))
        });
        self.worst.sort_by(|one, other| one.0.total_cmp(&other.0));
        let worst: Vec<String> = self
            .worst
            .iter()
            .take(5)
            .map(|(over, cell)| format!("{} {over:.3}", cell.trim()))
            .collect();
        format!(
            "SUMMARY {name}: {} cells, geometric mean {mean:.4}, {low} below 0.95, \
             at 1, 2, 4, 8, 16 requests {by_requests:.3?}, worst: {}\n",
            self.ratios.len(),
            worst.join("; ")
        )
    }
}

fn invented() -> String {
    let kinds: [(&str, &[Text]); 6] = [
        ("noise", &[|_| 0.1]),
        ("prose", &[|_| PROSE]),
        ("facts", &[|_| FACTS]),
        ("json", &[|_| JSON]),
        ("mixed", &[|_| PROSE, |_| JSON, |_| 0.1, |_| FACTS]),
        ("turning", &[|had| if had % 100 < 50 { 0.2 } else { JSON }]),
    ];
    let (mut text, mut summary) = (String::new(), Summary::default());
    for machine in [GPU, METAL, CPU, FEW_ROWS, VECTORS, MANY_ROWS] {
        for (kind, texts) in kinds {
            for streams in [1, 4, 16] {
                if texts.len() > streams {
                    continue;
                }
                let texts: Vec<Text> = texts.iter().copied().cycle().take(streams).collect();
                let all = [11, 12, 13].map(|seed| lanes(machine, &texts, 20, 150, seed).0);
                let sums = [0, 1, 2].map(|lane| all.iter().map(|one| one[lane]).sum::<f64>());
                let tokens = (3 * 20 * 150 * streams) as f64;
                let cell = format!("{} {kind} x{streams}", machine.name);
                text += &summary.add(cell, tokens, sums);
            }
        }
    }
    text + &summary.end("invented texts")
}

fn recorded(machines: &[Machine], seeds: &[u64], others: f64) -> String {
    let (mut text, mut summary) = (String::new(), Summary::default());
    for (machine, seed) in
        machines.iter().flat_map(|one| seeds.iter().map(move |seed| (one, *seed)))
    {
        for (cell, seconds) in sweep(*machine, others, 7, seed) {
            let streams = requests(&cell);
            let tokens = (7 * 128 * streams * 6usize.div_ceil(streams)) as f64;
            text += &summary.add(format!("{} {cell}", machine.name), tokens, seconds);
        }
    }
    let names: Vec<&str> = machines.iter().map(|machine| machine.name).collect();
    text + &summary.end(&format!("recorded texts, {}, others {others}", names.join(", ")))
}

#[test]
#[ignore = "by hand: prints a table, and checks nothing"]
fn controller_table() {
    let mut text = invented();
    for others in [0.0, 0.35] {
        let machines = [GPU, METAL, CPU, FEW_ROWS, VECTORS, MANY_ROWS];
        write!(text, "{}", recorded(&machines, &[5], others)).expect("a string");
    }
    for others in [0.0, 0.35] {
        write!(text, "{}", recorded(&[TWO_CORES], &[5, 6, 7], others)).expect("a string");
    }
    let [restored, bare] = [true, false].map(first_over_later);
    println!("{text}SUMMARY restart: with cells {restored:.4}, without {bare:.4}");
}
