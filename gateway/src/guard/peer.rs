//! The peers that connections and wrong keys are counted by.

use std::net::IpAddr;

/// One peer: an IPv4 address, or an IPv6 network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// An address of IPv4, also one that is written as IPv6.
    V4([u8; 4]),
    /// A /64 of IPv6: the owner of one of its addresses has all of them.
    V6([u8; 8]),
}

impl From<IpAddr> for Peer {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Peer::V4(address.octets()),
            IpAddr::V6(address) => {
                let [a, b, c, d, e, f, g, h, ..] = address.octets();
                Peer::V6([a, b, c, d, e, f, g, h])
            }
        }
    }
}
