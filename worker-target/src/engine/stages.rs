//! What a request's first token cost in the target, for its last message: the vision tower's steps
//! and those that read its prompt. Who reads again after it gave its memory up is past its first
//! token, and that is not counted.

/// Time until the first token, µs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stages {
    tower_us: u64,
    prefill_us: u64,
    answers: bool,
}

impl Stages {
    /// The tower worked so long on one of its pictures.
    pub(crate) fn saw(&mut self, us: u64) {
        if !self.answers {
            self.tower_us += us;
        }
    }

    /// A step with rows of its prompt took so long.
    pub(crate) fn read(&mut self, us: u64) {
        if !self.answers {
            self.prefill_us += us;
        }
    }

    /// Its first token is there.
    pub(crate) fn first_token(&mut self) {
        self.answers = true;
    }

    pub(crate) fn tower_ms(self) -> f64 {
        self.tower_us as f64 / 1e3
    }

    pub(crate) fn prefill_ms(self) -> f64 {
        self.prefill_us as f64 / 1e3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_end_with_the_first_token() {
        let mut stages = Stages::default();
        stages.saw(1_500);
        stages.saw(500);
        stages.read(250);
        stages.first_token();
        stages.saw(7_000);
        stages.read(7_000);
        assert_eq!((stages.tower_ms(), stages.prefill_ms()), (2.0, 0.25));
    }
}
