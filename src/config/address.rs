//! What clients are told to connect to.
//!
//! It is part of every message id, so it has to be right: the address of a container's bridge, or one that only this
//! machine has, is the most frequent report of new users (rocketmq-docker#3, rocketmq-externals#185).

use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs};

/// An address of this machine and the interface that has it.
#[derive(Clone, Debug)]
pub struct Interface {
    pub name: String,
    pub ip: IpAddr,
}

/// Starts of the names of interfaces that lead to containers or virtual machines of this host.
const BRIDGES: [&str; 14] = [
    "docker",
    "br-",
    "virbr",
    "veth",
    "cni",
    "flannel",
    "cali",
    "cilium",
    "podman",
    "lxc",
    "lxd",
    "vmnet",
    "kube-",
    "nodelocaldns",
];

/// Network that container runtimes give to their first bridge.
const BRIDGE_NETWORK: [u8; 2] = [172, 17];

/// The addresses of this machine; none if they can't be had.
pub fn interfaces() -> Vec<Interface> {
    let found = if_addrs::get_if_addrs().unwrap_or_else(|error| {
        tracing::warn!(%error, "the addresses of this machine can't be had");
        Vec::new()
    });
    let interface = |found: if_addrs::Interface| Interface {
        ip: found.ip(),
        name: found.name,
    };
    found.into_iter().map(interface).collect()
}

/// Resolves a host name; IPv4 first, since not every client takes the other.
pub fn resolve(name: &str) -> Option<IpAddr> {
    let all: Vec<IpAddr> = (name, 0).to_socket_addrs().ok()?.map(|a| a.ip()).collect();
    let first = all.iter().find(|ip| ip.is_ipv4()).or(all.first());
    first.copied()
}

/// The address for clients: what is configured, else where the broker listens, else the first address of this
/// machine that leads out of it. Adds warnings about one that clients can't reach.
///
/// **Errors**: the configured name can't be resolved.
pub fn advertised(
    configured: &str,
    bind: IpAddr,
    interfaces: &[Interface],
    resolve: &dyn Fn(&str) -> Option<IpAddr>,
    warnings: &mut Vec<String>,
) -> Result<IpAddr, String> {
    let ip = if !configured.is_empty() {
        let ip = configured.parse().ok().or_else(|| resolve(configured));
        ip.ok_or_else(|| {
            format!("brokerIP1 = {configured:?}: this host name can't be resolved here")
        })?
    } else if !bind.is_unspecified() {
        return Ok(bind);
    } else {
        first_outward(interfaces)
    };
    if ip.is_unspecified() {
        return Err(format!(
            "brokerIP1 = {configured:?}: clients can't connect to it; give an address of this machine"
        ));
    }
    if let Some(warning) = doubt(ip, bind, interfaces) {
        warnings.push(format!("clients are told {ip}, {warning} (brokerIP1)"));
    }
    Ok(ip)
}

/// What speaks against an address, if anything.
fn doubt(ip: IpAddr, bind: IpAddr, interfaces: &[Interface]) -> Option<String> {
    let own = interfaces.iter().find(|interface| interface.ip == ip);
    let is_local = own.is_some() || ip.is_loopback();
    if !bind.is_unspecified() && is_local && ip != bind {
        return Some(format!("but the broker listens on {bind} only"));
    }
    if bind.is_loopback() && !ip.is_loopback() {
        return Some(format!(
            "but the broker listens on {bind} only, so that something has to forward from there"
        ));
    }
    if ip.is_loopback() && !bind.is_loopback() {
        return Some("which only this machine can reach".to_owned());
    }
    if let Some(own) = own
        && is_bridge(&own.name)
    {
        return Some(format!(
            "the address of {}, which leads to containers of this machine",
            own.name
        ));
    }
    if is_bridge_network(ip) {
        return Some(
            "an address of a container network, unreachable from other machines".to_owned(),
        );
    }
    (!is_local && !interfaces.is_empty()).then(|| {
        "which no interface of this machine has; something has to forward from there".to_owned()
    })
}

fn is_bridge(name: &str) -> bool {
    BRIDGES.iter().any(|start| name.starts_with(start))
}

fn is_bridge_network(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V4(v4) if v4.octets()[..2] == BRIDGE_NETWORK)
}

fn first_outward(interfaces: &[Interface]) -> IpAddr {
    let outward = || {
        interfaces
            .iter()
            .filter(|interface| !interface.ip.is_loopback() && !is_link_local(interface.ip))
    };
    let v4 = || outward().filter(|interface| interface.ip.is_ipv4());
    let best = v4()
        .find(|interface| !is_bridge(&interface.name) && !is_bridge_network(interface.ip))
        .or_else(|| v4().find(|interface| !is_bridge(&interface.name)))
        .or_else(|| outward().find(|interface| !is_bridge(&interface.name)))
        .or_else(|| v4().next());
    best.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |interface| interface.ip)
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(list: &[(&str, &str)]) -> Vec<Interface> {
        let interface = |(name, ip): &(&str, &str)| Interface {
            name: (*name).to_owned(),
            ip: ip.parse().unwrap(),
        };
        list.iter().map(interface).collect()
    }

    fn check(configured: &str, bind: &str, list: &[(&str, &str)], expected: &str, warning: &str) {
        let resolve = |name: &str| (name == "known").then(|| IpAddr::from([10, 9, 9, 9]));
        let mut warnings = Vec::new();
        let bind = bind.parse().unwrap();
        let ip = advertised(configured, bind, &machine(list), &resolve, &mut warnings);
        let ip = ip.map(|ip| ip.to_string());
        assert_eq!(ip.as_deref(), Ok(expected), "{configured} {bind}");
        if warning.is_empty() {
            assert!(warnings.is_empty(), "{configured} {bind}: {warnings:?}");
        } else {
            assert!(
                warnings[0].contains(warning),
                "{configured} {bind}: {warnings:?}"
            );
        }
    }

    const HOST: &[(&str, &str)] = &[
        ("lo", "127.0.0.1"),
        ("docker0", "172.17.0.1"),
        ("br-12ab", "172.18.0.1"),
        ("eth1", "169.254.1.1"),
        ("eth0", "fe80::1"),
        ("eth0", "10.0.0.5"),
        ("eth2", "10.0.1.5"),
    ];
    const CONTAINER: &[(&str, &str)] = &[("lo", "127.0.0.1"), ("eth0", "172.17.0.2")];

    #[test]
    fn what_is_bound_is_told() {
        check("", "127.0.0.1", HOST, "127.0.0.1", "");
        check("", "10.0.1.5", HOST, "10.0.1.5", "");
        check("", "172.17.0.1", HOST, "172.17.0.1", "");
    }

    /// Sources: rocketmq-docker#3, rocketmq-externals#185, apache/rocketmq#6631.
    #[test]
    fn an_open_broker_tells_an_address_that_leads_out() {
        check("", "0.0.0.0", HOST, "10.0.0.5", "");
        check("", "::", HOST, "10.0.0.5", "");
        check("", "0.0.0.0", CONTAINER, "172.17.0.2", "container network");
        check(
            "",
            "0.0.0.0",
            &[("lo", "127.0.0.1")],
            "127.0.0.1",
            "only this machine",
        );
        check("", "0.0.0.0", &[], "127.0.0.1", "only this machine");
        check(
            "",
            "0.0.0.0",
            &[("docker0", "172.19.0.1")],
            "172.19.0.1",
            "docker0",
        );
        check(
            "",
            "::",
            &[("eth0", "fe80::1"), ("eth0", "2001:db8::5")],
            "2001:db8::5",
            "",
        );
    }

    #[test]
    fn what_is_configured_is_told_with_what_speaks_against_it() {
        check("10.0.0.5", "0.0.0.0", HOST, "10.0.0.5", "");
        check("10.0.0.5", "10.0.0.5", HOST, "10.0.0.5", "");
        check(
            "known",
            "0.0.0.0",
            HOST,
            "10.9.9.9",
            "no interface of this machine",
        );
        check("172.17.0.1", "0.0.0.0", HOST, "172.17.0.1", "docker0");
        check(
            "172.17.9.9",
            "0.0.0.0",
            HOST,
            "172.17.9.9",
            "container network",
        );
        check(
            "127.0.0.1",
            "0.0.0.0",
            HOST,
            "127.0.0.1",
            "only this machine",
        );
        check(
            "10.0.0.5",
            "127.0.0.1",
            HOST,
            "10.0.0.5",
            "listens on 127.0.0.1 only",
        );
        check(
            "203.0.113.1",
            "127.0.0.1",
            HOST,
            "203.0.113.1",
            "listens on 127.0.0.1 only",
        );
        check(
            "10.0.1.5",
            "10.0.0.5",
            HOST,
            "10.0.1.5",
            "listens on 10.0.0.5 only",
        );
        check(
            "203.0.113.1",
            "10.0.0.5",
            HOST,
            "203.0.113.1",
            "no interface of this machine",
        );
    }

    #[test]
    fn what_can_not_be_told_is_refused() {
        let mut warnings = Vec::new();
        let bind = IpAddr::from([0, 0, 0, 0]);
        for configured in ["unknown", "0.0.0.0", "::"] {
            let ip = advertised(configured, bind, &machine(HOST), &|_| None, &mut warnings);
            assert!(ip.unwrap_err().contains(configured), "{configured}");
        }
    }
}
