//! Effect of the end of an answer on the controller.

use paceline_vocabulary::Millis;

use super::super::*;
use super::simulation::*;
use crate::{Chosen, Request, Token};

#[test]
fn after_an_ignored_end_a_sequence_belongs_to_another_class() {
    let mut scheduler = Simulation::new(CPU, 1).scheduler;
    let mut add = |request: Request| scheduler.add(request).expect("room");
    let answer = add(request(ROUTED, 50));
    let asked_about = add(Request { prompt: vec![7, END, 7], ..request(ROUTED, 50) });
    let resumed = add(Request { continuation: vec![7, END], ..request(ROUTED, 50) });
    let of_another = add(Request { stop_ids: vec![], ignored_ids: vec![], ..request(ROUTED, 50) });
    let mut lives = |token: u32| {
        scheduler.start(|_| 0);
        let step = scheduler.next_step(Millis(0), |_| 0);
        let chosen = step
            .parts
            .iter()
            .map(|part| Chosen { key: part.key, tokens: vec![Token { id: token, margin: 1.0 }] });
        scheduler.on_step(&step.parts, chosen.collect(), 1000);
        let class = |key| {
            let speculation = &scheduler.speculation;
            speculation.classes[speculation.states[&key].class].0.clone()
        };
        [answer, asked_about, resumed, of_another].map(class)
    };
    assert_eq!(lives(1), ["default", "default", AFTER_EOS_CLASS, "default"]);
    assert_eq!(lives(END), [AFTER_EOS_CLASS, AFTER_EOS_CLASS, AFTER_EOS_CLASS, "default"]);
    assert_eq!(lives(END), [AFTER_EOS_CLASS, AFTER_EOS_CLASS, AFTER_EOS_CLASS, "default"]);
}
