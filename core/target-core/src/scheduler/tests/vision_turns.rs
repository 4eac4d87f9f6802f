//! Images: the tower's turns, how far prompts are prefilled, which features stay, and preemption.

use std::collections::BTreeMap;

use super::*;
use crate::PAGE;
use crate::{Image, ImageKey, Tower, TowerInfo, TowerSlice};

const BLOCKS: usize = 8;
const INFO: TowerInfo =
    TowerInfo { blocks: BLOCKS, whole: false, feature_bytes: 2, pixel_bytes: 1, keep_bytes: 200 };

fn seeing(info: TowerInfo, budget: u64) -> Scheduler {
    Scheduler::new(Ledger::new(budget, classes(&[(256, 100), (4096, 1600)])), 8)
        .with_tower(Tower::new(info))
        .with_row_us(1_000.0)
}

fn image(name: u8, first: usize, rows: usize) -> Image {
    Image {
        key: ImageKey([name; 32]),
        first,
        rows,
        grid_rows: 1,
        grid_columns: rows,
        patches: rows as u32,
    }
}

fn with(images: &[Image], prompt: usize) -> Request {
    Request { images: images.into(), ..request(prompt, 200) }
}

/// An engine with a scheduler and a vision tower. `T1` is a slice of image 1, `P0+40` 40 prompt
/// rows of sequence 0, `D0` a row it decodes.
struct Engine {
    scheduler: Scheduler,
    through: BTreeMap<ImageKey, usize>,
    /// µs of a block for a patch.
    patch_us: u64,
    longest_us: u64,
    /// µs of a step; 0: by its rows.
    step_us: u64,
}

impl Engine {
    fn new(scheduler: Scheduler) -> Self {
        Self { scheduler, through: BTreeMap::new(), patch_us: 1_000, longest_us: 0, step_us: 0 }
    }

    fn step(&mut self) -> String {
        self.scheduler.start(|_| 0);
        let step = self.scheduler.next_step(Millis(0), |_| 0);
        // Like the engine's arrays: an image that the core no longer names is dropped.
        self.through.retain(|image, _| self.scheduler.tower.is_under_way(image));
        if let Some(slice) = step.tower {
            assert!(step.parts.is_empty());
            return self.slice(slice);
        }
        for part in &step.parts {
            let sequence = self.scheduler.get(part.key).expect("it runs");
            for image in sequence.images.iter() {
                let reads = part.start < image.end() && part.start + part.rows > image.first;
                assert!(
                    !reads || self.scheduler.tower.has(&image.key),
                    "{part:?} has rows of an image without features"
                );
                if self.scheduler.tower.info().whole {
                    assert!(
                        !image.is_cut_at(part.start) && !image.is_cut_at(part.start + part.rows),
                        "{part:?} cuts {image:?}"
                    );
                }
            }
        }
        let name = |part: &StepPart| match part.prefill {
            true => format!("P{}+{}", part.key.0, part.rows),
            false => format!("D{}", part.key.0),
        };
        let names: Vec<String> = step.parts.iter().map(name).collect();
        let rows: usize = step.parts.iter().map(|part| part.rows).sum();
        let tokens = vec![Token { id: 9, margin: 1.0 }];
        let chosen = step.parts.iter().filter(|part| part.chooses);
        let chosen = chosen.map(|part| Chosen { key: part.key, tokens: tokens.clone() }).collect();
        let took_us = if self.step_us > 0 { self.step_us } else { 1_000 * rows as u64 };
        self.scheduler.on_step(&step.parts, chosen, took_us);
        names.join(" ")
    }

    fn slice(&mut self, slice: TowerSlice) -> String {
        let image = self.scheduler.get(slice.owner).expect("it runs").images[slice.index];
        assert_eq!(image.key, slice.image);
        assert!(!self.scheduler.tower.has(&slice.image), "it is there already");
        let took_us = self.patch_us * u64::from(image.patches) * slice.blocks as u64;
        self.longest_us = self.longest_us.max(took_us);
        self.scheduler.tower.sliced(slice.image, image.patches, slice.blocks, took_us);
        let through = self.through.entry(slice.image).or_default();
        *through += slice.blocks;
        assert!(*through <= BLOCKS);
        if *through == BLOCKS {
            self.through.remove(&slice.image);
            self.scheduler
                .tower
                .finished(slice.image, INFO.feature_bytes * u64::from(image.patches));
        }
        format!("T{}", slice.image.0[0])
    }

    fn steps(&mut self, count: usize) -> Vec<String> {
        (0..count).map(|_| self.step()).collect()
    }

    /// Steps until a sequence has `rows` rows.
    fn until(&mut self, key: SequenceKey, rows: usize) -> Vec<String> {
        let mut all = vec![];
        while self.scheduler.get(key).is_some_and(|one| one.committed < rows) {
            assert!(all.len() < 10_000, "it never gets there: {:?}", &all[all.len() - 20..]);
            all.push(self.step());
        }
        all
    }
}

#[test]
fn a_prompt_is_prefilled_up_to_the_first_image_without_features() {
    let mut engine = Engine::new(seeing(INFO, 10_000));
    let key = engine.scheduler.add(with(&[image(1, 10, 20), image(2, 40, 5)], 60)).expect("room");
    // The first slice measures the tower. After it 250 ms are 12 blocks of 20 patches.
    assert_eq!(engine.steps(4), ["T1", "P0+10", "T1", "P0+30"]);
    assert_eq!(engine.steps(3), ["T2", "P0+20", "D0"]);
    assert_eq!(engine.scheduler.get(key).expect("it runs").committed, 61);
}

#[test]
fn streams_prompts_and_images_take_turns() {
    let mut engine = Engine::new(seeing(INFO, 100_000));
    engine.scheduler.add(request(5, 200)).expect("room");
    assert_eq!(engine.step(), "P0+5");
    engine.scheduler.add(with(&[image(1, 0, 200)], 210)).expect("room");
    // A block of 200 patches takes 200 ms, longer than a slice should: one each. The stream has as
    // much time after each of them.
    engine.step_us = 50_000;
    assert_eq!(
        engine.steps(11),
        ["T1", "D0", "D0", "D0", "D0", "T1", "D0", "D0", "D0", "D0", "T1"]
    );
    engine.scheduler.add(request(900, 200)).expect("room");
    let turns: String = engine.steps(18).join(",");
    assert!(turns.starts_with("D0,D0,D0,D0,D0 P2+"), "{turns}");
    let turns: Vec<&str> = turns.split("T1,").map(|turn| turn.trim_end_matches(',')).collect();
    assert!(
        turns.len() > 2
            && turns
                .iter()
                .all(|turn| turn.matches("P2").count() <= 1 && turn.matches("D0").count() <= 5),
        "{turns:?}"
    );
}

#[test]
fn the_time_reserved_for_streams_is_bounded_and_ends_with_them() {
    let mut engine = Engine::new(seeing(INFO, 100_000));
    let stream = engine.scheduler.add(request(5, 200)).expect("room");
    engine.step();
    engine.patch_us = 50_000;
    engine.step_us = 100_000;
    engine.scheduler.add(with(&[image(1, 0, 200)], 210)).expect("room");
    // A block takes ten seconds, and half a second after it is reserved for streams.
    assert_eq!(engine.steps(7), ["T1", "D0", "D0", "D0", "D0", "D0", "T1"]);
    assert_eq!(engine.step(), "D0");
    engine.scheduler.remove(stream);
    assert_eq!(engine.steps(2), ["T1", "T1"]);
}

#[test]
fn a_slice_is_no_longer_than_a_chunk() {
    for (decodes, most_us) in [(false, 250_000), (true, 125_000)] {
        let mut engine = Engine::new(seeing(INFO, 100_000));
        (engine.patch_us, engine.step_us) = (500, 50_000);
        if decodes {
            engine.scheduler.add(request(5, 200)).expect("room");
            engine.step();
        }
        let key =
            engine.scheduler.add(with(&[image(1, 0, 100), image(2, 100, 160)], 300)).expect("room");
        engine.until(key, 300);
        assert!(
            engine.longest_us <= most_us && engine.longest_us > most_us / 3,
            "{}",
            engine.longest_us
        );
    }
}

#[test]
fn an_image_in_two_places_is_computed_once_and_stored_for_later() {
    let mut engine = Engine::new(seeing(INFO, 100_000));
    let twice = engine.scheduler.add(with(&[image(1, 2, 30), image(1, 40, 30)], 80)).expect("room");
    let other = engine.scheduler.add(with(&[image(1, 5, 30)], 50)).expect("room");
    let mut all = engine.until(twice, 80);
    all.extend(engine.until(other, 50));
    let blocks = all.iter().filter(|step| step.starts_with('T')).count();
    assert!(blocks < BLOCKS, "{all:?}");
    assert_eq!(
        engine.scheduler.tower.evictable_bytes(),
        0,
        "they count as needed until the next update"
    );
    engine.step();
    assert_eq!(engine.scheduler.tower.evictable_bytes(), 60);
    // Another sequence finds it, and stored features count.
    assert_eq!(engine.scheduler.ledger().cached(), 60);
    let later = engine.scheduler.add(with(&[image(1, 0, 30)], 40)).expect("room");
    assert!(engine.until(later, 40).iter().all(|step| !step.contains('T')));
}

#[test]
fn rows_that_attend_to_one_another_are_prefilled_together() {
    let whole = TowerInfo { whole: true, ..INFO };
    let mut engine = Engine::new(seeing(whole, 100_000));
    engine.scheduler.add(request(5, 200)).expect("room");
    engine.step();
    // 300 rows are more than a chunk ever is here: they make one of their own.
    let long =
        engine.scheduler.add(with(&[image(1, 10, 300), image(2, 320, 40)], 400)).expect("room");
    let short = engine.scheduler.add(request(800, 10)).expect("room");
    let mut all = engine.until(long, 400);
    assert!(all.iter().any(|step| step.contains("P1+300")), "{all:?}");
    all.extend(engine.until(short, 800));
    // Cached pages end before an image that they would cut.
    let sequence = Sequence::new(with(&[image(1, 10, 60), image(2, 100, 40)], 200));
    let found: Vec<_> =
        [0, 1, 2, 3].iter().map(|pages| sequence.uncut_pages(*pages, PAGE)).collect();
    assert_eq!(found, [0, 0, 0, 3]);
    assert_eq!(crate::image::uncut(&sequence.images, 128), 100);
}

#[test]
fn an_image_that_no_sequence_wants_stops() {
    let mut engine = Engine::new(seeing(INFO, 100_000));
    let gone = engine.scheduler.add(with(&[image(1, 0, 200)], 210)).expect("room");
    assert_eq!(engine.steps(2), ["T1", "T1"]);
    let held = engine.scheduler.ledger().held();
    assert_eq!(held, 100 + 200 * (INFO.feature_bytes + INFO.pixel_bytes));
    engine.scheduler.remove(gone);
    assert_eq!(engine.step(), "");
    assert!(engine.scheduler.tower.is_empty() && engine.through.is_empty());
    assert_eq!((engine.scheduler.ledger().held(), engine.scheduler.ledger().cached()), (0, 0));
    // One of two is removed: the image of the other one continues.
    let first = engine.scheduler.add(with(&[image(2, 0, 200)], 210)).expect("room");
    let second = engine.scheduler.add(with(&[image(2, 0, 200)], 220)).expect("room");
    engine.steps(3);
    let through = engine.through[&ImageKey([2; 32])];
    engine.scheduler.remove(first);
    assert_eq!(engine.step(), "T2");
    assert!(engine.through[&ImageKey([2; 32])] > through);
    engine.until(second, 220);
}

#[test]
fn features_are_held_until_prefilled_and_pixels_until_the_end() {
    let mut engine = Engine::new(seeing(INFO, 100_000));
    let key = engine.scheduler.add(with(&[image(1, 0, 50), image(2, 60, 50)], 120)).expect("room");
    engine.step();
    assert_eq!(engine.scheduler.ledger().held(), 100 + 2 * 50 * 3);
    engine.until(key, 60);
    engine.step();
    assert_eq!(engine.scheduler.ledger().held(), 100 + 50 + 50 * 3);
    engine.until(key, 121);
    engine.step();
    assert_eq!(engine.scheduler.ledger().held(), 100 + 2 * 50);
    assert_eq!(engine.scheduler.ledger().cached(), 200);
    engine.scheduler.remove(key);
    assert_eq!(engine.scheduler.ledger().held(), 0);
}

#[test]
fn features_are_evicted_before_pages_and_before_a_preemption() {
    // Room for three sequences of the first class, or for two and the features of an image.
    let mut engine = Engine::new(seeing(INFO, 400));
    let first = engine.scheduler.add(with(&[image(1, 0, 40)], 50)).expect("room");
    engine.until(first, 51);
    engine.step();
    assert_eq!((engine.scheduler.ledger().held(), engine.scheduler.ledger().cached()), (140, 80));
    let others: Vec<_> =
        (0..2).map(|_| engine.scheduler.add(request(5, 20)).expect("taken")).collect();
    engine.step();
    // Bytes are missing for the third: the features make room.
    assert_eq!((engine.scheduler.ledger().held(), engine.scheduler.ledger().cached()), (340, 0));
    assert!(others.iter().all(|key| engine.scheduler.ledger().holds(*key)));
    assert!(!engine.scheduler.tower.has(&ImageKey([1; 32])));
    assert!(engine.scheduler.iter().all(|(_, one)| one.preemptions == 0));
}

#[test]
fn images_of_a_preempted_sequence_are_computed_and_prefilled_again() {
    let mut engine = Engine::new(
        Scheduler::new(Ledger::new(450, classes(&[(64, 100), (128, 200), (256, 400)])), 4)
            .with_row_us(1_000.0),
    );
    engine.scheduler = engine.scheduler.with_tower(Tower::new(TowerInfo { keep_bytes: 0, ..INFO }));
    engine.step_us = 250_000;
    let text = Request { max_tokens: 190, ..request(60, 190) };
    let old = engine.scheduler.add(text).expect("room");
    let young = engine
        .scheduler
        .add(Request { max_tokens: 80, ..with(&[image(1, 4, 30)], 40) })
        .expect("room");
    engine.until(young, 42);
    // The older one grows into all memory. After its end the younger one begins again.
    while engine.scheduler.get(young).is_some_and(|one| one.preemptions == 0) {
        engine.step();
    }
    assert!(!engine.scheduler.ledger().holds(young));
    let mut all = vec![];
    while engine.scheduler.get(old).is_some() {
        all.push(engine.step());
    }
    assert!(all.iter().all(|step| !step.contains('T')), "one that holds nothing wants nothing");
    let tokens = engine.scheduler.get(young).expect("it waits").generated();
    let again = engine.until(young, 41 + tokens as usize);
    assert!(again.iter().any(|step| step == "T1"), "{again:?}");
    engine.until(young, usize::MAX);
    assert_eq!(engine.step(), "");
    assert_eq!(engine.scheduler.ledger().held(), 0);
}

#[test]
fn a_request_whose_images_can_never_fit_is_refused() {
    let mut scheduler = seeing(INFO, 400);
    scheduler
        .add(Request { max_tokens: 20, ..with(&[image(1, 0, 100)], 120) })
        .expect("as much as there is");
    let refused = scheduler.add(Request { max_tokens: 20, ..with(&[image(1, 0, 101)], 120) });
    assert_eq!(
        refused,
        Err(SchedulerError::Ledger(LedgerError::Never { needed: 403, budget: 400 }))
    );
}

/// Random requests with images: no row of an image is prefilled before its features are there,
/// every request completes, and all memory is released.
#[test]
fn any_mixture_of_requests_completes() {
    let mut state = 5_u64;
    let mut roll = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    for round in 0..60 {
        let whole = round % 2 == 0;
        let keep_bytes = [0, 100, 400][round % 3];
        let mut engine = Engine::new(seeing(TowerInfo { whole, keep_bytes, ..INFO }, 2_600));
        let (mut asked, mut steps) = (0, 0);
        while asked < 30 || !engine.scheduler.is_empty() {
            steps += 1;
            assert!(steps < 20_000, "round {round} does not end");
            if asked < 30 && roll(6) == 0 {
                let (mut images, mut end) = (vec![], 0);
                for _ in 0..roll(4) {
                    let rows = 1 + roll(70) as usize;
                    let first = end + roll(20) as usize;
                    // The same image several times has the same size.
                    let name = roll(6) as u8;
                    let rows = if name < 3 { 10 + 9 * usize::from(name) } else { rows };
                    let name = if name < 3 { name } else { 10 + (asked * 4 + images.len()) as u8 };
                    images.push(image(name, first, rows));
                    end = first + rows;
                }
                let prompt = end + 1 + roll(200) as usize;
                let request = Request { max_tokens: 1 + roll(40) as u32, ..with(&images, prompt) };
                asked += usize::from(engine.scheduler.add(request).is_ok());
            }
            if roll(60) == 0 {
                let gone = engine.scheduler.iter().nth(roll(8) as usize).map(|(key, _)| key);
                gone.map(|key| engine.scheduler.remove(key));
            }
            engine.step();
            let ledger = engine.scheduler.ledger();
            assert_eq!(ledger.free() + ledger.held() + ledger.cached(), ledger.budget());
            assert!(engine.through.len() <= 2);
        }
        engine.step();
        assert!(engine.scheduler.tower.evictable_bytes() <= keep_bytes);
        assert_eq!((engine.scheduler.ledger().held(), engine.through.len()), (0, 0));
    }
}
