//! The sets that a pod gets, of those that select it: of two that cannot both be injected the older, and none with which the
//! API server would refuse the pod.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::fit::field_in_the_way;
use super::pod::PodView;
use super::{Injection, Remark, is_another_volume};
use crate::sidecarset::container::SetContainer;
use crate::sidecarset::host_ports::{host_ports, taken_twice};
use crate::sidecarset::overlap;
use crate::sidecarset::template::Template;
use crate::workload::JsonObject;
use crate::workload::object::text;

/// The sets that the pod gets, by name: of two that cannot both be injected the older.
pub(super) fn choose<'a>(
    pod: &PodView<'_>,
    injections: &'a [Injection<'a>],
    remarks: &mut Vec<(Arc<str>, Remark)>,
) -> Vec<&'a Injection<'a>> {
    let mut by_age: Vec<_> = injections.iter().collect();
    by_age.sort_by_key(|injection| injection.set.precedence());
    let mut chosen: Vec<&Injection<'_>> = Vec::new();
    for injection in by_age {
        let in_the_way = in_the_way(pod, injection.template);
        let overlap = || {
            chosen.iter().find_map(|older| {
                let (template, other) = (injection.template, older.template);
                let mut ports = overlap::host_ports(template, other, pod.is_on_host_network);
                let overlap = overlap::find(template, other).or_else(|| ports.next())?;
                let older = older.set.name.clone();
                Some(Remark::Overlap { older, overlap })
            })
        };
        match in_the_way.or_else(overlap) {
            Some(remark) => remarks.push((injection.set.name.clone(), remark)),
            None => chosen.push(injection),
        }
    }
    // The order by name makes the pods of one workload alike: `OpenKruise` takes sets as its cache
    // lists them, each time in another order.
    chosen.sort_by(|a, b| a.set.name.cmp(&b.set.name));
    chosen
}

/// Why a pod that got a set would be refused by the API server.
fn in_the_way(pod: &PodView<'_>, template: &Template) -> Option<Remark> {
    let mut names = template
        .all()
        .flat_map(|sidecar| sidecar.names_in_pod().map(|name| (sidecar.kind, name)));
    let own = names.find(|(kind, name)| pod.is_in_the_way(*kind, name));
    own.map(|(_, name)| Remark::OwnContainer(name))
        .or_else(|| host_port_in_the_way(pod, template))
        .or_else(|| device_in_the_way(pod, template))
        .or_else(|| field_in_the_way(pod, template).map(Remark::Misfit))
}

/// A port of the host that another container of the pod takes, or that the host's network does not allow.
fn host_port_in_the_way(pod: &PodView<'_>, template: &Template) -> Option<Remark> {
    let is_on_host_network = pod.is_on_host_network;
    let translated = template
        .containers
        .iter()
        .find_map(SetContainer::translated_port);
    if let Some(port) = translated.filter(|_| is_on_host_network) {
        return Some(Remark::HostNetwork(port));
    }
    let mut ports = template.host_ports(is_on_host_network).peekable();
    ports.peek()?;
    // Ports of a container that is replaced go.
    let names: BTreeSet<_> = template
        .containers
        .iter()
        .flat_map(SetContainer::names_in_pod)
        .collect();
    let stays = |own: &&&JsonObject| text(own, "name").is_none_or(|name| !names.contains(name));
    let own = pod.containers.iter().filter(stays);
    let taken = own.flat_map(|own| host_ports(own, is_on_host_network));
    taken_twice(taken.collect(), ports).map(Remark::HostPort)
}

/// A device whose volume the pod has, and another one than the set. To mount another one is possible, and its contents may
/// be what the sidecar expects; a device has to be a claim of the right mode, and is written to as a whole.
fn device_in_the_way(pod: &PodView<'_>, template: &Template) -> Option<Remark> {
    let mut devices = template.all().flat_map(SetContainer::devices);
    let other = devices.find(|name| match (pod.volume(name), template.volume(name)) {
        (Some(own), Some(volume)) => is_another_volume(own, volume),
        _ => false,
    });
    other.map(|name| Remark::OwnDevice(name.to_owned()))
}
