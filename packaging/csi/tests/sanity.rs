//! What csi-sanity (https://github.com/kubernetes-csi/csi-test, pkg/sanity) asks of a driver with these capabilities:
//! each of its cases that it would not skip, by its name there.

mod stand;

use nfsrdma_csi::messages::*;
use stand::{Stand, capability, code, strings};
use std::collections::HashSet;
use tonic::{Code, Status};

/// The size that csi-sanity asks for if nothing else is said.
const SIZE: i64 = 10 << 30;

fn volume(name: &str) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.into(),
        capacity_range: Some(CapacityRange {
            required_bytes: SIZE,
            limit_bytes: 0,
        }),
        volume_capabilities: vec![capability(Mode::SingleNodeWriter)],
        parameters: strings([("server", "127.0.0.1"), ("share", "/srv")]),
        ..Default::default()
    }
}

fn create(stand: &Stand, request: CreateVolumeRequest) -> Result<Volume, Status> {
    let answer: CreateVolumeResponse = stand.call("Controller/CreateVolume", request)?;
    let volume = answer.volume.expect("a volume");
    assert!(!volume.volume_id.is_empty());
    assert!(volume.capacity_bytes >= SIZE || volume.capacity_bytes == 0);
    Ok(volume)
}

fn delete(stand: &Stand, id: &str) -> Code {
    let request = DeleteVolumeRequest {
        volume_id: id.into(),
        ..Default::default()
    };
    let answer: Result<DeleteVolumeResponse, _> = stand.call("Controller/DeleteVolume", request);
    code(answer)
}

fn publish_to(stand: &Stand, volume: &Volume) -> NodePublishVolumeRequest {
    NodePublishVolumeRequest {
        volume_id: volume.volume_id.clone(),
        volume_capability: Some(capability(Mode::SingleNodeWriter)),
        volume_context: volume.volume_context.clone(),
        ..stand.request()
    }
}

fn stats(stand: &Stand, id: &str, path: &str) -> Result<NodeGetVolumeStatsResponse, Status> {
    let request = NodeGetVolumeStatsRequest {
        volume_id: id.into(),
        volume_path: path.into(),
    };
    stand.call("Node/NodeGetVolumeStats", request)
}

fn unpublish(stand: &Stand, id: &str, path: &str) -> Code {
    let request = NodeUnpublishVolumeRequest {
        volume_id: id.into(),
        target_path: path.into(),
    };
    let answer: Result<NodeUnpublishVolumeResponse, _> =
        stand.call("Node/NodeUnpublishVolume", request);
    code(answer)
}

/// "should return appropriate capabilities", "should return appropriate information", "should return required
/// information", "should return appropriate values" of NodeGetInfo.
#[test]
fn identity_and_capabilities() {
    let Some(stand) = Stand::new() else { return };
    let plugin: GetPluginCapabilitiesResponse = stand
        .call(
            "Identity/GetPluginCapabilities",
            GetPluginCapabilitiesRequest {},
        )
        .unwrap();
    let services: Vec<_> = plugin
        .capabilities
        .iter()
        .map(|one| one.service.clone())
        .collect();
    // CONTROLLER_SERVICE or VOLUME_ACCESSIBILITY_CONSTRAINTS.
    assert!(
        services
            .iter()
            .flatten()
            .all(|of| [1, 2].contains(&of.number))
    );
    let probe: ProbeResponse = stand.call("Identity/Probe", ProbeRequest {}).unwrap();
    assert_ne!(probe.ready, Some(false));
    let info: GetPluginInfoResponse = stand
        .call("Identity/GetPluginInfo", GetPluginInfoRequest {})
        .unwrap();
    // A domain name, of at most 63 characters, which begins and ends with one of these.
    let (first, last) = (info.name.chars().next(), info.name.chars().last());
    assert!(first.is_some_and(char::is_alphanumeric) && last.is_some_and(char::is_alphanumeric));
    assert!(info.name.len() <= 63 && info.name.contains('.'));
    let node: NodeGetInfoResponse = stand
        .call("Node/NodeGetInfo", NodeGetInfoRequest {})
        .unwrap();
    assert!(!node.node_id.is_empty());
    // The capabilities themselves: `it_says_what_it_is_and_what_it_can` of driver.rs.
}

/// CreateVolume: "should fail when no name is provided", "... when no volume capabilities are provided", "should return
/// appropriate values SingleNodeWriter NoCapacity", "... WithCapacity 1Gi", "should not fail when requesting to create a
/// volume with already existing name and same capacity", "should fail ... and different capacity", "should not fail when
/// creating volume with maximum-length name".
#[test]
fn create_volume() {
    let Some(stand) = Stand::new() else { return };
    assert_eq!(code(create(&stand, volume(""))), Code::InvalidArgument);
    let mut none = volume("no-capabilities");
    none.volume_capabilities.clear();
    assert_eq!(code(create(&stand, none)), Code::InvalidArgument);
    let mut any = volume("no-capacity");
    any.capacity_range = None;
    create(&stand, any).unwrap();
    let once = create(&stand, volume("twice")).unwrap();
    assert_eq!(create(&stand, volume("twice")).unwrap(), once);
    let sized = |bytes| {
        let mut request = volume("twice-different");
        request.capacity_range = Some(CapacityRange {
            required_bytes: bytes,
            limit_bytes: bytes,
        });
        create(&stand, request)
    };
    let made = sized(SIZE).unwrap();
    assert_eq!(code(sized(2 * SIZE)), Code::AlreadyExists);
    assert_eq!(sized(SIZE).unwrap(), made);
    // After it was deleted it is another volume.
    assert_eq!(delete(&stand, &made.volume_id), Code::Ok);
    sized(2 * SIZE).unwrap();
    create(&stand, volume(&"n".repeat(128))).unwrap();
}

/// DeleteVolume: "should fail when no volume id is provided", "should succeed when an invalid volume id is used", "should
/// return appropriate values (no optional values added)".
#[test]
fn delete_volume() {
    let Some(stand) = Stand::new() else { return };
    assert_eq!(delete(&stand, ""), Code::InvalidArgument);
    assert_eq!(delete(&stand, "reallyfakevolumeid"), Code::Ok);
    let made = create(&stand, volume("appropriate")).unwrap();
    assert_eq!(delete(&stand, &made.volume_id), Code::Ok);
    assert!(!stand.export.join("appropriate").exists());
}

/// ValidateVolumeCapabilities: "should fail when no volume id is provided", "... when no volume capabilities are
/// provided", "should return appropriate values (no optional values added)", "should fail when the requested volume does
/// not exist".
#[test]
fn validate_volume_capabilities() {
    let Some(stand) = Stand::new() else { return };
    let ask = |id: &str, capabilities: &[VolumeCapability]| {
        let request = ValidateVolumeCapabilitiesRequest {
            volume_id: id.into(),
            volume_capabilities: capabilities.to_vec(),
            ..Default::default()
        };
        let answer: Result<ValidateVolumeCapabilitiesResponse, _> =
            stand.call("Controller/ValidateVolumeCapabilities", request);
        answer
    };
    let good = [capability(Mode::SingleNodeWriter)];
    assert_eq!(code(ask("", &[])), Code::InvalidArgument);
    let made = create(&stand, volume("validate")).unwrap();
    assert_eq!(code(ask(&made.volume_id, &[])), Code::InvalidArgument);
    let confirmed = ask(&made.volume_id, &good).unwrap().confirmed.unwrap();
    assert_eq!(confirmed.volume_capabilities, good);
    assert_eq!(code(ask("fake-vol-id-1", &good)), Code::NotFound);
}

/// NodePublishVolume: "should fail when no volume id is provided", "... no target path ...", "... no volume capability
/// ...". NodeUnpublishVolume: "should fail when no volume id is provided", "... no target path ...", "should remove
/// target path".
#[test]
fn node_publish_and_unpublish() {
    let Some(stand) = Stand::new() else { return };
    let target = stand.target.display().to_string();
    for request in [
        NodePublishVolumeRequest::default(),
        NodePublishVolumeRequest {
            volume_id: "fake-vol-id-1".into(),
            ..Default::default()
        },
        NodePublishVolumeRequest {
            volume_id: "fake-vol-id-1".into(),
            target_path: target.clone(),
            ..Default::default()
        },
    ] {
        assert_eq!(code(stand.publish(&request)), Code::InvalidArgument);
    }
    assert_eq!(unpublish(&stand, "", ""), Code::InvalidArgument);
    assert_eq!(
        unpublish(&stand, "fake-vol-id-1", ""),
        Code::InvalidArgument
    );
    let made = create(&stand, volume("unpublish")).unwrap();
    stand.publish(&publish_to(&stand, &made)).unwrap();
    assert!(stand.target.is_dir());
    assert_eq!(unpublish(&stand, &made.volume_id, &target), Code::Ok);
    assert!(!stand.target.exists());
}

/// NodeGetVolumeStats: "should fail when no volume id is provided", "... no volume path ...", "should fail when volume is
/// not found", "should fail when volume does not exist on the specified path".
#[test]
fn node_get_volume_stats() {
    let Some(stand) = Stand::new() else { return };
    assert_eq!(code(stats(&stand, "", "some/path")), Code::InvalidArgument);
    assert_eq!(
        code(stats(&stand, "fake-vol-id-1", "")),
        Code::InvalidArgument
    );
    assert_eq!(
        code(stats(&stand, "fake-vol-id-1", "some/path")),
        Code::NotFound
    );
    let made = create(&stand, volume("stats")).unwrap();
    stand.publish(&publish_to(&stand, &made)).unwrap();
    assert_eq!(
        code(stats(&stand, &made.volume_id, "some/path")),
        Code::NotFound
    );
}

/// "should work", and "should be idempotent", which does it ten times.
#[test]
fn the_whole_life_of_a_volume() {
    let Some(stand) = Stand::new() else { return };
    for count in [1, 10] {
        let mut made = HashSet::new();
        for _ in 0..count {
            let one = create(&stand, volume(&format!("full-{count}"))).unwrap();
            stand.publish(&publish_to(&stand, &one)).unwrap();
            let usage = stats(&stand, &one.volume_id, stand.target.to_str().unwrap())
                .unwrap()
                .usage;
            assert!(!usage.is_empty());
            made.insert(one.volume_id);
        }
        assert_eq!(made.len(), 1);
        for id in made {
            for _ in 0..count {
                assert_eq!(
                    unpublish(&stand, &id, stand.target.to_str().unwrap()),
                    Code::Ok
                );
                assert_eq!(delete(&stand, &id), Code::Ok);
            }
        }
    }
}

/// The volumes that ask for more than this driver has: "Skip" in csi-sanity, and Unimplemented here.
#[test]
fn what_is_not_declared_is_not_there() {
    let Some(stand) = Stand::new() else { return };
    for method in [
        "Controller/ControllerPublishVolume",
        "Controller/ControllerUnpublishVolume",
        "Controller/ListVolumes",
        "Controller/GetCapacity",
        "Controller/CreateSnapshot",
        "Controller/DeleteSnapshot",
        "Controller/ListSnapshots",
        "Controller/ControllerExpandVolume",
        "Controller/ControllerGetVolume",
        "Node/NodeStageVolume",
        "Node/NodeUnstageVolume",
        "Node/NodeExpandVolume",
    ] {
        let answer: Result<ProbeResponse, _> = stand.call(method, ProbeRequest {});
        assert_eq!(code(answer), Code::Unimplemented, "{method}");
    }
}
