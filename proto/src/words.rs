//! Values of enums as people and JSON have them: `ROUTE_REASON_DRAFTER_ABSENT` is "drafter_absent".

use crate::v1::{FinishReason, KvReduction, Lane, ProcessState, Products, RouteReason, RouteWish};

macro_rules! words {
    ($($name:ident: $prefix:literal),* $(,)?) => {$(
        impl $name {
            /// Word of the value in JSON, logs and messages.
            pub fn word(self) -> String {
                let name = self.as_str_name();
                name.strip_prefix($prefix).unwrap_or(name).to_lowercase()
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.word())
            }
        }
    )*};
}

words! {
    FinishReason: "FINISH_REASON_",
    KvReduction: "KV_REDUCTION_",
    Lane: "LANE_",
    ProcessState: "PROCESS_STATE_",
    Products: "PRODUCTS_",
    RouteReason: "ROUTE_REASON_",
    RouteWish: "ROUTE_WISH_",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_has_no_prefix() {
        let words = [
            FinishReason::Stop.word(),
            Lane::Plain.word(),
            RouteReason::DrafterAbsent.word(),
            RouteWish::Auto.word(),
        ];
        assert_eq!(words, ["stop", "plain", "drafter_absent", "auto"]);
        assert_eq!(ProcessState::BackingOff.word(), "backing_off");
        assert_eq!(KvReduction::RebootWhileBusy.word(), "reboot_while_busy");
    }
}
