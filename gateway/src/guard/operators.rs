//! Decides who may give orders by the status page (`gateway.operators`). Keys open the model to
//! clients; an order needs a key that the configuration lists. Without keys the one sign of an
//! operator is the machine: loopback knows no users.

use paceline_process::config::Operators;

use super::keys::Principal;

/// Why a client may give no orders.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotOperator {
    /// The configuration allows nobody.
    #[error(
        "orders by this page are off, because gateway.operators of this service is empty; use the command line, such as `paceline restart`"
    )]
    Off,
    /// The configuration lists no key.
    #[error(
        "no key may give orders by this page; list the name of an operator's key in gateway.operators of this service, or use the command line"
    )]
    NoKeyListed,
    /// The configuration lists other keys.
    #[error(
        "the key {0} may give no orders; list it in gateway.operators of this service, or use a key that is listed"
    )]
    OtherKey(String),
    /// There are no keys, and the client is not known to be on this machine.
    #[error(
        "without keys orders are taken from a browser on this machine alone; open the page there as http://localhost, without a proxy, or set keys (gateway.api_keys_file) and gateway.operators"
    )]
    NotLocal,
}

/// Checks that the owner of a key may give orders, or without keys a client. `is_local`: the client
/// is a browser on this machine.
///
/// # Errors
/// It may not.
pub fn check(
    operators: &Operators,
    has_keys: bool,
    owner: Option<&Principal>,
    is_local: bool,
) -> Result<(), NotOperator> {
    match (operators, has_keys) {
        (Operators::Keys(names), _) if names.is_empty() => Err(NotOperator::Off),
        (Operators::Auto, true) => Err(NotOperator::NoKeyListed),
        (Operators::Keys(names), _) => match owner {
            Some(owner) if names.iter().any(|name| **name == *owner.name) => Ok(()),
            Some(owner) => Err(NotOperator::OtherKey(owner.name.to_string())),
            None => Err(NotOperator::NoKeyListed),
        },
        (Operators::Auto, false) if is_local => Ok(()),
        (Operators::Auto, false) => Err(NotOperator::NotLocal),
    }
}

#[cfg(test)]
mod tests {
    use paceline_vocabulary::KeyId;

    use super::*;

    #[test]
    fn a_listed_key_gives_orders_and_without_keys_this_machine_alone() {
        let owner = |name: &str| Principal {
            name: name.into(),
            id: KeyId(1),
            class: "default".into(),
            scope: "s".into(),
        };
        let (alice, bob) = (owner("alice"), owner("bob"));
        let listed = Operators::Keys(vec!["alice".into()]);
        let off = Operators::Keys(vec![]);
        let other = Err(NotOperator::OtherKey("bob".into()));
        for (operators, has_keys, owner, is_local, expected) in [
            (&Operators::Auto, false, None, true, Ok(())),
            (&Operators::Auto, false, None, false, Err(NotOperator::NotLocal)),
            (&Operators::Auto, true, Some(&alice), true, Err(NotOperator::NoKeyListed)),
            (&listed, true, Some(&alice), false, Ok(())),
            (&listed, true, Some(&bob), true, other),
            (&listed, true, None, true, Err(NotOperator::NoKeyListed)),
            (&off, false, None, true, Err(NotOperator::Off)),
            (&off, true, Some(&alice), true, Err(NotOperator::Off)),
        ] {
            let found = check(operators, has_keys, owner, is_local);
            assert_eq!(found, expected, "{operators:?} {has_keys} {owner:?} {is_local}");
        }
    }
}
