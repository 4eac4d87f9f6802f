//! What has to be done for a changed setting to be in force.

/// What reads a changed setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applies {
    /// The running service uses it at once.
    AtOnce,
    /// The next gateway reads it.
    Gateway,
    /// The next supervisor reads it.
    Supervisor,
    /// The next target reads it.
    Target,
    /// The next target reads it, and running requests do not go on there.
    OtherTarget,
    /// The next drafter reads it.
    Drafter,
    /// It is read when the service starts.
    Service,
}

impl Applies {
    /// What an operator does, for a sentence that begins with the setting.
    pub fn what_to_do(self) -> &'static str {
        match self {
            Applies::AtOnce => "in force",
            Applies::Gateway => "in force after `paceline restart gateway`, which loses no request",
            Applies::Supervisor => {
                "in force after `paceline restart supervisor`; running requests pause and go on"
            }
            Applies::Target => {
                "in force after `paceline restart target`; running requests pause and go on"
            }
            Applies::OtherTarget => {
                "in force after `paceline restart target --drain`, which lets running requests end"
            }
            Applies::Drafter => "in force after `paceline restart drafter`",
            Applies::Service => "in force when the service is started again",
        }
    }
}
