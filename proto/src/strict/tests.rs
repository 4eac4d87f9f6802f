use crate::status::ReasonStatus as _;
use prost::Message as _;
use tonic_types::StatusExt;

use super::*;
use crate::v1;

fn request() -> Vec<u8> {
    let part = v1::ContentPart { part: Some(v1::content_part::Part::Text("hello".into())) };
    let message = v1::Message { role: "user".into(), content: vec![part], ..Default::default() };
    v1::ChatRequest { messages: vec![message], ..Default::default() }.encode_to_vec()
}

#[test]
fn a_message_of_known_fields_is_decoded() {
    let message: v1::ChatRequest = decode(request().into()).expect("decoded");
    assert_eq!(message.messages[0].role, "user");
}

#[test]
fn a_refusal_names_field_limit_and_found() {
    let limits = v1::Limits { stop: vec![String::new(); 5000], ..Default::default() };
    let wire = v1::GenerateRequest { limits: Some(limits), ..Default::default() }.encode_to_vec();
    let status = decode::<v1::GenerateRequest>(wire.into()).expect_err("5,000 are too many");
    assert_eq!(
        (status.code(), Reason::of(&status)),
        (tonic::Code::InvalidArgument, Some(Reason::InvalidArgument))
    );
    assert_eq!(
        status.message(),
        "limits.stop: expected at most 4096 elements, found 5000; send fewer"
    );
    assert_eq!(
        status.get_details_bad_request().expect("named").field_violations[0].field,
        "limits.stop"
    );
    let fact = |key| Reason::fact(&status, key);
    assert_eq!((fact("limit").as_deref(), fact("found").as_deref()), (Some("4096"), Some("5000")));
}

#[test]
fn an_unknown_field_is_named() {
    let mut wire = request();
    prost::encoding::uint32::encode(77, &1, &mut wire);
    let error = decode::<v1::ChatRequest>(wire.into()).expect_err("77 is unknown");
    assert!(error.message().contains("field number 77 of paceline.v1.ChatRequest"), "{error}");
}

#[test]
fn a_deferred_message_is_checked_when_it_is_decoded() {
    let deferred = |wire: Vec<u8>| {
        Deferred::<v1::ChatRequest>::from_wire(wire.into()).expect("not looked at yet")
    };
    let wire = request();
    let good = deferred(wire.clone());
    assert_eq!(
        (good.wire_bytes(), format!("{good:?}")),
        (wire.len(), format!("Deferred({} bytes)", wire.len()))
    );
    assert_eq!(good.decode().expect("decoded").messages.len(), 1);
    let mut unknown = wire;
    prost::encoding::uint32::encode(77, &1, &mut unknown);
    assert!(
        deferred(unknown)
            .decode()
            .expect_err("77 is unknown")
            .message()
            .contains("field number 77")
    );
    assert!(
        deferred(vec![0x0a, 0xff])
            .decode()
            .expect_err("cut off")
            .message()
            .contains("paceline.v1.ChatRequest")
    );
}
