//! Ids of tool calls for a template that takes ids of nine letters and digits alone, as Mistral's
//! do. The algorithm: another id becomes nine digits of base 36 of its hash, so that a call and its
//! answer still agree, and every turn renders the same.

use crate::prompt::conversation::{Conversation, Role};

/// Characters of an id.
const LENGTH: usize = 9;

/// Replaces the ids of other forms.
pub(super) fn shorten(conversation: &mut Conversation) {
    for message in &mut conversation.messages {
        message.calls.iter_mut().for_each(|call| shorten_id(&mut call.id));
        if message.role == Role::Tool {
            shorten_id(&mut message.call_id);
        }
    }
}

fn shorten_id(id: &mut String) {
    if id.len() == LENGTH && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return;
    }
    // FNV-1a. An id is no secret.
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let mut rest = id.bytes().fold(0xcbf2_9ce4_8422_2325, step);
    let digit = |_| {
        let digit = u32::try_from(rest % 36).unwrap_or(0);
        rest /= 36;
        char::from_digit(digit, 36).unwrap_or('0')
    };
    *id = (0..LENGTH).map(digit).collect();
}
