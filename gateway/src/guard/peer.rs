//! The peers that connections and wrong keys are counted by.

use std::fmt::{self, Display, Formatter};
use std::net::{IpAddr, Ipv4Addr};

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

impl Display for Peer {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Peer::V4(address) => write!(f, "{}", Ipv4Addr::from(*address)),
            Peer::V6(network) => {
                let number = u64::from_be_bytes(*network);
                write!(f, "{number:016x}/64")
            }
        }
    }
}
