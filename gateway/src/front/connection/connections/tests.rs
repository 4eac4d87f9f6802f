use futures::FutureExt as _;

use super::*;

const HERE: &str = "127.0.0.1";

fn enter(connections: &Connections, address: &str) -> Result<ConnectionSlot, ConnectionLimit> {
    connections.enter(address.parse().expect("an address"))
}

fn some(connections: &Connections, count: usize) -> Vec<ConnectionSlot> {
    (0..count).map(|_| enter(connections, HERE).expect("room")).collect()
}

fn stage(slot: &ConnectionSlot) -> ConnectionStage {
    slot.0.activity.borrow().stage
}

/// Places of those that are not open any more.
fn gone(slots: &[ConnectionSlot]) -> Vec<usize> {
    (0..slots.len()).filter(|at| stage(&slots[*at]) != ConnectionStage::Open).collect()
}

#[test]
fn the_longest_idle_connection_is_shed_for_a_newcomer() {
    let connections = Connections::bounded(4, 1);
    let mut slots = some(&connections, 4);
    // Idle since: 1, 3, 0, 2.
    for at in [2, 0, 3, 1] {
        drop(slots[at].handle().begin(true).expect("open"));
    }
    for expected in [&[2][..], &[0, 2], &[0, 2, 3], &[0, 1, 2, 3]] {
        let newcomer = enter(&connections, HERE).expect("an idle one is shed");
        drop(newcomer.handle().begin(true).expect("open"));
        slots.push(newcomer);
        assert_eq!(gone(&slots), expected);
    }
    assert_eq!(lock(&connections.0.state).slots.len(), 4);
    assert_eq!(*connections.0.open.borrow(), 8, "the shed ones are not closed yet");
    drop(slots);
    assert!(connections.all_closed().now_or_never().is_some());
}

#[test]
fn a_connection_with_an_authenticated_request_is_never_shed_while_a_request_is_open_on_it() {
    let connections = Connections::bounded(2, 1);
    let slots = some(&connections, 2);
    let first = slots[0].handle().begin(true).expect("open");
    drop(slots[1].handle().begin(true).expect("open"));
    let second = slots[1].handle().begin(false).expect("open");
    assert_eq!(enter(&connections, HERE).expect_err("all are busy"), ConnectionLimit::All);
    drop(first);
    let third = enter(&connections, HERE).expect("the first is idle");
    assert_eq!(gone(&slots), [0]);
    let _request = third.handle().begin(true).expect("open");
    assert_eq!(
        enter(&connections, HERE).expect_err("all are busy").setting(),
        "limits.connections"
    );
    connections.free_descriptor();
    assert_eq!(gone(&slots), [0]);
    drop(second);
    connections.free_descriptor();
    assert_eq!(
        (stage(&slots[1]), lock(&connections.0.state).slots.len()),
        (ConnectionStage::Cut, 1)
    );
}

#[test]
fn unused_connections_are_shed_before_used_ones() {
    let connections = Connections::bounded(3, 1);
    let mut slots = some(&connections, 3);
    drop(slots[0].handle().begin(true).expect("open"));
    drop(slots[1].handle().begin(false).expect("open"));
    for expected in [&[2][..], &[1, 2]] {
        let newcomer = enter(&connections, HERE).expect("an idle one is shed");
        drop(newcomer.handle().begin(true).expect("open"));
        slots.push(newcomer);
        assert_eq!(gone(&slots), expected);
    }
}

#[test]
fn a_connection_without_an_authenticated_request_is_shed_whatever_is_open_on_it() {
    let connections = Connections::bounded(4, 1);
    let mut slots = some(&connections, 4);
    let mut known = vec![slots[0].handle().begin(true).expect("open")];
    let _watches = [1, 2].map(|at| slots[at].handle().begin(false).expect("open"));
    // The idle one first, then those with open requests, and never the known one.
    for expected in [&[3][..], &[1, 3], &[1, 2, 3]] {
        let newcomer = enter(&connections, HERE).expect("one without a key is shed");
        known.push(newcomer.handle().begin(true).expect("open"));
        slots.push(newcomer);
        assert_eq!(gone(&slots), expected);
    }
    assert_eq!(enter(&connections, HERE).expect_err("all are known"), ConnectionLimit::All);
}

#[test]
fn a_peers_connections_without_an_authenticated_request_make_room_for_its_own() {
    let connections = Connections::bounded(100, 2);
    let slots: Vec<_> = (0..2).map(|_| enter(&connections, "192.0.2.1").expect("room")).collect();
    let _watches = [0, 1].map(|at| slots[at].handle().begin(false).expect("open"));
    assert!(enter(&connections, "192.0.2.1").is_ok());
    assert_eq!(gone(&slots), [0]);
}

#[test]
fn requests_without_a_key_on_one_connection_are_bounded_until_one_has_a_key() {
    let connections = Connections::bounded(1, 1);
    let slot = enter(&connections, HERE).expect("room");
    let begin = |authenticated| slot.handle().begin(authenticated);
    let mut requests: Vec<_> =
        (0..MAX_UNKNOWN_REQUESTS).map(|_| begin(false).expect("open")).collect();
    let refused = begin(false).expect_err("all it may have");
    assert_eq!(refused.kind, Reason::TooManyStreams);
    requests.push(begin(true).expect("a request with a key"));
    requests.push(begin(false).expect("its client is known now"));
}

#[test]
fn a_peer_has_a_bound_of_its_own_and_this_machine_has_none() {
    let connections = Connections::bounded(100, 2);
    let busy = |address: &str| {
        let slot = enter(&connections, address).expect("room");
        let request = slot.handle().begin(true).expect("open");
        (slot, request)
    };
    let mut held = vec![];
    for (first, second, third) in [
        ("192.0.2.1", "::ffff:192.0.2.1", "192.0.2.1"),
        ("192.0.2.2", "192.0.2.2", "::ffff:192.0.2.2"),
        ("2001:db8::1", "2001:db8::2", "2001:db8::3"),
        ("2001:db8:0:1::1", "2001:db8:0:1::1", "2001:db8:0:1::1"),
    ] {
        held.extend([busy(first), busy(second)]);
        let refused = enter(&connections, third).expect_err("both are busy");
        assert_eq!(
            (refused, refused.setting()),
            (ConnectionLimit::OfPeer, "limits.connections_per_peer")
        );
    }
    for local in ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"] {
        held.extend([busy(local), busy(local), busy(local)]);
    }
    // An idle connection of the peer itself makes room, and one of another peer does not.
    let idle = enter(&connections, "192.0.2.3").expect("room");
    assert!(enter(&connections, "192.0.2.1").is_err());
    let (slot, request) = held.swap_remove(0);
    drop(request);
    assert!(enter(&connections, "192.0.2.1").is_ok());
    assert_eq!((stage(&slot), stage(&idle)), (ConnectionStage::Shed, ConnectionStage::Open));
}

#[test]
fn a_quarter_of_all_connections_may_be_one_peers() {
    let of = |connections, per_peer| {
        let limits =
            LimitsConfig { connections, connections_per_peer: per_peer, ..Default::default() };
        Connections::new(&limits).0.most_of_peer
    };
    use paceline_process::config::Auto;
    assert_eq!([of(512, Auto::Auto), of(2, Auto::Auto), of(512, Auto::Is(7))], [128, 1, 7]);
}

#[test]
fn a_shed_connection_refuses_requests_with_a_retryable_reason() {
    let connections = Connections::bounded(1, 1);
    let first = enter(&connections, HERE).expect("room");
    let _second = enter(&connections, HERE).expect("the first is shed");
    assert!(first.leaves().now_or_never().is_some());
    let error = first.handle().begin(true).expect_err("shed");
    assert_eq!(error.kind, Reason::ConnectionClosing);
    assert!(error.kind.retryable() && error.retry_after.is_zero());
}

#[tokio::test]
async fn shed_connections_that_are_not_closed_yet_are_bounded() {
    let connections = Connections::bounded(1, 1);
    let slots = some(&connections, MAX_SHED + 1);
    assert!(slots.iter().all(|slot| stage(slot) != ConnectionStage::Cut));
    let _next = some(&connections, 2);
    assert_eq!(
        [0, 1, 2].map(|at| stage(&slots[at])),
        [ConnectionStage::Cut, ConnectionStage::Cut, ConnectionStage::Shed]
    );
    assert!(slots[0].is_overdue().now_or_never().is_some(), "it is not waited for");
    assert_eq!(lock(&connections.0.state).shed.len(), MAX_SHED);
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_an_authenticated_request_leaves_after_thirty_seconds_without_any() {
    let connections = Connections::bounded(9, 1);
    let slot = enter(&connections, HERE).expect("room");
    let just_before = UNUSED - Duration::from_millis(1);
    let after =
        async |slot: &ConnectionSlot, time| tokio::time::timeout(time, slot.leaves()).await.is_ok();
    assert!(!after(&slot, just_before).await && after(&slot, UNUSED).await);
    // Any open request keeps it; the time begins again with its end.
    let slot = enter(&connections, HERE).expect("room");
    let watch = slot.handle().begin(false).expect("open");
    assert!(!after(&slot, UNUSED * 100).await);
    drop(watch);
    assert!(!after(&slot, just_before).await && after(&slot, UNUSED).await);
    // After an authenticated request it stays.
    let slot = enter(&connections, HERE).expect("room");
    drop(slot.handle().begin(true).expect("open"));
    assert!(!after(&slot, UNUSED * 100).await);
}

#[tokio::test(start_paused = true)]
async fn a_shed_connection_without_an_authenticated_request_is_waited_for_five_seconds() {
    let connections = Connections::bounded(1, 1);
    let slot = enter(&connections, HERE).expect("room");
    let mut watches: Vec<_> = (0..3).map(|_| slot.handle().begin(false).expect("open")).collect();
    let _newcomer = enter(&connections, HERE).expect("it is shed");
    slot.leaves().now_or_never().expect("shed");
    let mut overdue = std::pin::pin!(slot.is_overdue());
    // Requests that end one by one buy it no time.
    for _ in 0..2 {
        let soon = tokio::time::timeout(CLOSE_GRACE / 3, &mut overdue);
        assert!(soon.await.is_err());
        watches.pop();
    }
    let rest = CLOSE_GRACE / 3 + Duration::from_millis(1);
    assert!(tokio::time::timeout(rest, &mut overdue).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_closed_is_waited_for_while_it_has_requests() {
    let connections = Connections::bounded(9, 1);
    let slot = enter(&connections, HERE).expect("room");
    let request = slot.handle().begin(true).expect("open");
    let overdue = async |time| tokio::time::timeout(time, slot.is_overdue()).await.is_ok();
    assert!(!overdue(CLOSE_GRACE * 100).await);
    let last = slot.handle().begin(true).expect("its slot is its own until it is closed");
    drop(request);
    assert!(!overdue(CLOSE_GRACE * 100).await);
    drop(last);
    assert!(!overdue(CLOSE_GRACE - Duration::from_millis(1)).await && overdue(CLOSE_GRACE).await);
}
