use std::collections::BTreeSet;

use prost::Message as _;

use super::*;
use crate::limits::{MAX_TOKEN_IDS, MAX_TURNS};
use crate::v1;

const CHAT: &str = "paceline.v1.ChatRequest";

/// A length-delimited field of this number, `times` times.
fn times(number: u32, content: &[u8], times: usize) -> Vec<u8> {
    let mut one = Vec::new();
    prost::encoding::bytes::encode(number, &content.to_vec(), &mut one);
    one.repeat(times)
}

fn too_many(field: &str, limit: u32, found: u64) -> Result<(), Problem> {
    Err(Problem::TooMany { field: field.into(), limit, found })
}

#[test]
fn known_fields_pass_at_any_depth_and_an_unknown_one_does_not() {
    let part = v1::ContentPart { part: Some(v1::content_part::Part::Text("hello".into())) };
    let message = v1::Message { role: "user".into(), content: vec![part], ..Default::default() };
    let wire = v1::ChatRequest { messages: vec![message], ..Default::default() }.encode_to_vec();
    assert_eq!(check(CHAT, &wire), Ok(()));
    let deep = times(2, &times(2, &times(9, b"audio", 1), 1), 1);
    assert_eq!(
        check(CHAT, &deep),
        Err(Problem::Unknown { number: 9, message: "paceline.v1.ContentPart".into() })
    );
}

#[test]
fn broken_wire_data_is_left_to_the_decoder() {
    for broken in [
        &[0x0a, 0xff][..],
        &[0xff],
        &[0x0a, 0x05, 1],
        &[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
    ] {
        assert_eq!(check(CHAT, broken), Ok(()), "{broken:?}");
        assert!(v1::ChatRequest::decode(broken).is_err(), "{broken:?}");
    }
}

#[test]
fn eight_million_empty_messages_are_counted_and_refused() {
    let wire = times(2, &[], 8 << 20);
    assert_eq!(wire.len(), 16 << 20);
    assert_eq!(check(CHAT, &wire), too_many("messages", MAX_TURNS, 8 << 20));
}

#[test]
fn a_limit_is_reached_and_not_passed() {
    let turns = |count: u32| check(CHAT, &times(2, &[], count as usize));
    assert_eq!(turns(MAX_TURNS), Ok(()));
    assert_eq!(turns(MAX_TURNS + 1), too_many("messages", MAX_TURNS, u64::from(MAX_TURNS) + 1));
}

#[test]
fn the_place_of_a_nested_field_is_named() {
    let many = times(3, &[], 1025);
    let wire = [times(2, &[], 2), times(2, &many, 1)].concat();
    assert_eq!(check(CHAT, &wire), too_many("messages[2].tool_calls", 1024, 1025));
    let counted = times(2, &wire, 1);
    assert_eq!(
        check("paceline.v1.CountTokensRequest", &counted),
        too_many("chat.messages[2].tool_calls", 1024, 1025)
    );
}

#[test]
fn token_ids_are_counted_packed_and_unpacked() {
    const IDS: &str = "paceline.v1.TokenIds";
    let most = MAX_TOKEN_IDS as usize;
    let ids = |ids: Vec<u32>| v1::TokenIds { ids }.encode_to_vec();
    // One byte and five bytes each.
    for id in [1, u32::MAX] {
        assert_eq!(check(IDS, &ids(vec![id; most])), Ok(()));
        assert_eq!(
            check(IDS, &ids(vec![id; most + 1])),
            too_many("ids", MAX_TOKEN_IDS, most as u64 + 1)
        );
    }
    let mut unpacked = [0x08, 0x01].repeat(most);
    assert_eq!(check(IDS, &unpacked), Ok(()));
    // Both forms in one message.
    unpacked.extend(ids(vec![7, 8]));
    assert_eq!(check(IDS, &unpacked), too_many("ids", MAX_TOKEN_IDS, most as u64 + 2));
    let margins =
        v1::GenerateResponse { margins: vec![1.0; 65_537], ..Default::default() }.encode_to_vec();
    assert_eq!(
        check("paceline.v1.GenerateResponse", &margins),
        too_many("margins", 65_536, 65_537)
    );
}

/// Each part of a field that is set several times is appended to what is there: single limits alone
/// do not hold.
#[test]
fn elements_of_all_fields_together_are_counted() {
    let in_all =
        |field: &str, kind, limit| Err(Problem::TooManyInAll { field: field.into(), kind, limit });
    let full = v1::TokenIds { ids: vec![1; MAX_TOKEN_IDS as usize] }.encode_to_vec();
    let prompts = times(3, &full, 3);
    assert_eq!(
        check("paceline.v1.GenerateRequest", &prompts),
        in_all("token_ids.ids", "numbers", MAX_NUMBERS)
    );
    assert_eq!(check("paceline.v1.GenerateRequest", &times(3, &full, 2)), Ok(()));
    let turn = times(2, &[], 4096);
    let chat = |turns| check(CHAT, &times(2, &turn, turns));
    assert_eq!(chat(15), Ok(()));
    assert_eq!(chat(16), in_all("messages[15].content", "elements", MAX_ELEMENTS));
}

#[test]
fn the_longest_legal_requests_pass_between_processes() {
    use crate::internal::v1::{Generation, SubmitRequest};
    let ids = vec![151_000; MAX_TOKEN_IDS as usize];
    let generation =
        Generation { prompt_ids: ids.clone(), continuation_ids: ids, ..Default::default() };
    let wire = SubmitRequest { generation: Some(generation), ..Default::default() }.encode_to_vec();
    assert_eq!(check("paceline.internal.v1.SubmitRequest", &wire), Ok(()));
}

/// Message types that a service's requests and answers carry, at any depth.
fn carried() -> BTreeSet<usize> {
    let set = FileDescriptorSet::decode(crate::DESCRIPTORS).expect("descriptors");
    let methods =
        set.file.iter().flat_map(|file| &file.service).flat_map(|service| &service.method);
    let names = methods.flat_map(|method| [method.input_type(), method.output_type()]);
    let mut open: Vec<usize> =
        names.map(|name| CONTRACT.by_name[name.trim_start_matches('.')]).collect();
    let mut found = BTreeSet::new();
    while let Some(at) = open.pop() {
        if found.insert(at) {
            let inner =
                CONTRACT.types[at].fields.iter().flatten().filter_map(|field| match field.kind {
                    Kind::Message(at) => Some(at),
                    _ => None,
                });
            open.extend(inner);
        }
    }
    found
}

#[test]
fn each_repeated_field_of_a_service_has_its_limit() {
    let mut fields = BTreeSet::new();
    for at in carried() {
        let message = &CONTRACT.types[at];
        let repeated = message.fields.iter().flatten().filter(|field| field.repeated.is_some());
        fields.extend(repeated.map(|field| (message.name.as_str(), field.name.as_str())));
    }
    let rows: BTreeSet<(&str, &str)> =
        FIELDS.iter().map(|(message, field, _)| (*message, *field)).collect();
    assert_eq!(rows.len(), FIELDS.len(), "a row is there twice");
    assert_eq!(rows, fields);
}

#[test]
fn the_contract_has_only_the_field_kinds_that_the_walk_knows() {
    fn depth(at: usize, above: &mut Vec<usize>) -> u32 {
        if above.contains(&at) {
            return MAX_DEPTH;
        }
        above.push(at);
        let inner = CONTRACT.types[at].fields.iter().flatten().map(|field| match field.kind {
            Kind::Message(at) => 1 + depth(at, above),
            _ => 0,
        });
        let deepest = inner.max().unwrap_or(0);
        above.pop();
        deepest
    }
    for at in 0..CONTRACT.types.len() {
        let message = &CONTRACT.types[at];
        assert!(depth(at, &mut vec![]) < MAX_DEPTH, "{}", message.name);
        assert!(message.fields.len() < 64, "{} has large field numbers", message.name);
        assert!(
            message.fields.iter().flatten().filter(|field| field.repeated.is_some()).count()
                <= MAX_REPEATED
        );
    }
}
