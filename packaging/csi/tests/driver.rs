//! The driver as a process, with real mounts of a responder, called as an orchestrator calls it.

mod stand;

use nfsrdma_csi::messages::*;
use rustix::process::Signal;
use stand::{Stand, capability, code, strings, until};
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;
use tonic::{Code, Status};

#[test]
fn it_says_what_it_is_and_what_it_can() {
    let Some(stand) = Stand::new() else { return };
    let info: GetPluginInfoResponse = stand
        .call("Identity/GetPluginInfo", GetPluginInfoRequest {})
        .unwrap();
    assert_eq!(info.name, "nfsrdma.csi");
    assert_eq!(info.vendor_version, env!("CARGO_PKG_VERSION"));
    let plugin: GetPluginCapabilitiesResponse = stand
        .call(
            "Identity/GetPluginCapabilities",
            GetPluginCapabilitiesRequest {},
        )
        .unwrap();
    let service = Some(Type {
        number: Type::CONTROLLER_SERVICE,
    });
    assert_eq!(plugin.capabilities, [PluginCapability { service }]);
    let probe: ProbeResponse = stand.call("Identity/Probe", ProbeRequest {}).unwrap();
    assert_eq!(probe.ready, Some(true));
    let node: ServiceCapabilities = stand
        .call("Node/NodeGetCapabilities", NodeGetCapabilitiesRequest {})
        .unwrap();
    assert_eq!(node, ServiceCapabilities::of(Type::GET_VOLUME_STATS));
    let controller: ServiceCapabilities = stand
        .call(
            "Controller/ControllerGetCapabilities",
            ControllerGetCapabilitiesRequest {},
        )
        .unwrap();
    assert_eq!(
        controller,
        ServiceCapabilities::of(Type::CREATE_DELETE_VOLUME)
    );
    let info: NodeGetInfoResponse = stand
        .call("Node/NodeGetInfo", NodeGetInfoRequest {})
        .unwrap();
    assert_eq!(info.node_id, "node-1");
    let other: Result<ProbeResponse, _> = stand.call("Node/NodeStageVolume", ProbeRequest {});
    assert_eq!(code(other), Code::Unimplemented);
}

#[test]
fn a_volume_is_published_and_unpublished_as_often_as_it_is_asked_for() {
    let Some(stand) = Stand::new() else { return };
    stand.publish(&stand.request()).unwrap();
    stand.publish(&stand.request()).unwrap();
    assert_eq!(stand.mounts().len(), 1);
    fs::write(stand.target.join("file"), "text").unwrap();
    let stats = stand.stats().unwrap();
    let bytes = &stats.usage[0];
    assert_eq!(bytes.unit, Unit::Bytes as i32);
    assert!(bytes.total >= bytes.used + bytes.available && bytes.available > 0);
    assert_eq!(stats.usage[1].unit, Unit::Inodes as i32);
    stand.unpublish().unwrap();
    assert_eq!(fs::read(stand.export.join("file")).unwrap(), b"text");
    assert!(!stand.target.exists());
    stand.unpublish().unwrap();
    assert_eq!(code(stand.stats()), Code::NotFound);
}

#[test]
fn a_volume_for_reading_cannot_be_written() {
    let Some(stand) = Stand::new() else { return };
    let write = || fs::write(stand.target.join("file"), "text").map_err(|error| error.kind());
    let mut by_flag = stand.request();
    by_flag.readonly = true;
    let mut by_mode = stand.request();
    by_mode.volume_capability = Some(capability(Mode::MultiNodeReaderOnly));
    let mut by_option = stand.request();
    by_option
        .volume_context
        .insert("mountOptions".into(), "ro".into());
    for request in [by_flag, by_mode, by_option] {
        stand.publish(&request).unwrap();
        stand.publish(&request).unwrap();
        assert_eq!(write(), Err(ErrorKind::ReadOnlyFilesystem));
        assert_eq!(code(stand.publish(&stand.request())), Code::AlreadyExists);
        stand.unpublish().unwrap();
    }
    stand.publish(&stand.request()).unwrap();
    assert_eq!(write(), Ok(()));
}

#[test]
fn options_and_the_directory_of_a_volume_are_used() {
    let Some(stand) = Stand::new() else { return };
    fs::create_dir_all(stand.export.join("a/b")).unwrap();
    let mut request = stand.request();
    request
        .volume_context
        .insert("subDir".into(), "a//b/".into());
    request
        .volume_context
        .insert("csi.storage.k8s.io/pod.name".into(), "pod".into());
    let capability = request.volume_capability.as_mut().unwrap();
    let mount = capability.mount.as_mut().unwrap();
    mount.fs_type = "ext4".into();
    mount.mount_flags = vec!["noexec".into()];
    stand.publish(&request).unwrap();
    let line = stand.mounts().remove(0);
    assert!(
        line.contains("noexec") && line.contains(" 127.0.0.1:/srv/a/b "),
        "{line}"
    );
    // Another directory of the same share is another volume.
    assert_eq!(code(stand.publish(&stand.request())), Code::AlreadyExists);
}

#[test]
fn wrong_requests_are_told_from_what_fails() {
    let Some(stand) = Stand::new() else { return };
    type Change = fn(&mut NodePublishVolumeRequest);
    let wrong: [(Change, &str); 14] = [
        (|r| r.volume_id.clear(), "no id of the volume"),
        (|r| r.target_path.clear(), "no absolute path"),
        (|r| r.target_path = "a/b".into(), "no absolute path"),
        (|r| r.target_path.push_str("/../x"), "'..'"),
        (|r| r.volume_capability = None, "no capability"),
        (
            |r| r.volume_capability = Some(VolumeCapability::default()),
            "no access type",
        ),
        (
            |r| r.volume_capability.as_mut().unwrap().access_mode = None,
            "no access mode",
        ),
        (
            |r| r.volume_capability.as_mut().unwrap().block = Some(BlockVolume {}),
            "no block device",
        ),
        (|r| r.volume_context.clear(), "set 'server' and 'share'"),
        (
            |r| r.volume_context.extend(strings([("subDir", "../x")])),
            "'subDir'",
        ),
        (
            |r| r.volume_context.extend(strings([("server", "-oro")])),
            "'server'",
        ),
        (
            |r| r.volume_context.extend(strings([("serverr", "x")])),
            "'serverr' is not known",
        ),
        (
            |r| r.volume_context.extend(strings([("mountOptions", "sink")])),
            "sink",
        ),
        (
            |r| {
                r.volume_context
                    .extend(strings([("mountOptions", "uid=1")]))
            },
            "uid",
        ),
    ];
    for (change, said) in wrong {
        let mut request = stand.request();
        change(&mut request);
        let status = stand.publish(&request).unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        assert!(status.message().contains(said), "{said}: {status}");
    }
    let mut request = stand.request();
    request
        .volume_context
        .insert("share".into(), "/other".into());
    let status = stand.publish(&request).unwrap_err();
    assert_eq!(status.code(), Code::Internal, "{status}");
    assert!(status.message().contains("/other"), "{status}");
    let no_id = NodeUnpublishVolumeRequest {
        volume_id: String::new(),
        target_path: "/x".into(),
    };
    let answer: Result<NodeUnpublishVolumeResponse, _> =
        stand.call("Node/NodeUnpublishVolume", no_id);
    assert_eq!(code(answer), Code::InvalidArgument);
    let no_path = NodeGetVolumeStatsRequest {
        volume_id: "volume".into(),
        volume_path: String::new(),
    };
    let answer: Result<NodeGetVolumeStatsResponse, _> =
        stand.call("Node/NodeGetVolumeStats", no_path);
    assert_eq!(code(answer), Code::InvalidArgument);
    assert!(stand.mounts().is_empty());
}

#[test]
fn mounts_do_not_notice_that_the_driver_is_killed_or_ended() {
    let Some(mut stand) = Stand::new() else {
        return;
    };
    stand.publish(&stand.request()).unwrap();
    let mut file = File::create(stand.target.join("file")).unwrap();
    file.write_all(b"before ").unwrap();
    stand.end_driver(Signal::KILL);
    file.write_all(b"after ").unwrap();
    stand.start_driver();
    stand.publish(&stand.request()).unwrap();
    stand.stats().unwrap();
    assert!(stand.end_driver(Signal::TERM) && !stand.has_socket());
    file.write_all(b"end").unwrap();
    drop(file);
    stand.start_driver();
    stand.unpublish().unwrap();
    assert_eq!(
        fs::read(stand.export.join("file")).unwrap(),
        b"before after end"
    );
}

#[test]
fn a_dead_mount_is_replaced() {
    let Some(stand) = Stand::new() else { return };
    let mut request = stand.request();
    request
        .volume_context
        .insert("mountOptions".into(), "restart=no".into());
    for again in [true, false] {
        stand.publish(&request).unwrap();
        let document = stand.nfsrdma(&["stats", "--json", stand.target.to_str().unwrap()]);
        let document = String::from_utf8(document).unwrap();
        let pid = document
            .split("\"pid\":")
            .nth(1)
            .and_then(|rest| rest.split(',').next());
        let pid = pid.and_then(|number| number.trim().parse().ok());
        let pid = pid.and_then(rustix::process::Pid::from_raw).unwrap();
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
        until("the mount is dead", || fs::read_dir(&stand.target).is_err());
        assert_eq!(code(stand.stats()), Code::Internal);
        if again {
            stand.publish(&request).unwrap();
            fs::read_dir(&stand.target).unwrap();
        }
        stand.unpublish().unwrap();
        assert!(stand.mounts().is_empty());
    }
}

#[test]
fn one_call_at_a_time_works_on_a_directory() {
    let Some(stand) = Stand::new() else { return };
    let server = stand.responder.pid().unwrap();
    let server = rustix::process::Pid::from_raw(server.cast_signed()).unwrap();
    rustix::process::kill_process(server, Signal::STOP).unwrap();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| code(stand.publish(&stand.request())));
        // It is made once the call has taken it; the call before it would refuse the first one.
        until("the directory", || stand.target.exists());
        assert_eq!(code(stand.unpublish()), Code::Aborted);
        rustix::process::kill_process(server, Signal::CONT).unwrap();
        assert_eq!(first.join().unwrap(), Code::Ok);
    });
    stand.unpublish().unwrap();
}

fn creation(name: &str, more: &[(&str, &str)]) -> CreateVolumeRequest {
    let mut parameters = strings([("server", "127.0.0.1"), ("share", "/srv")]);
    parameters.extend(
        more.iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned())),
    );
    CreateVolumeRequest {
        name: name.into(),
        volume_capabilities: vec![capability(Mode::MultiNodeMultiWriter)],
        parameters,
        ..Default::default()
    }
}

fn create(stand: &Stand, name: &str, more: &[(&str, &str)]) -> Result<Volume, Status> {
    let request = creation(name, more);
    let answer: CreateVolumeResponse = stand.call("Controller/CreateVolume", request)?;
    Ok(answer.volume.expect("a volume"))
}

fn delete(stand: &Stand, id: &str) -> Result<(), Status> {
    let request = DeleteVolumeRequest {
        volume_id: id.to_owned(),
        ..Default::default()
    };
    let answer = stand.call("Controller/DeleteVolume", request);
    answer.map(|DeleteVolumeResponse {}| ())
}

#[test]
fn a_dynamic_volume_is_a_directory_of_the_share() {
    let Some(stand) = Stand::new() else { return };
    fs::write(stand.export.join("other"), "").unwrap();
    let mode = [
        ("mountPermissions", "0770"),
        ("csi.storage.k8s.io/pvc/name", "claim"),
    ];
    let volume = create(&stand, "pvc-1", &mode).unwrap();
    assert_eq!(create(&stand, "pvc-1", &mode).unwrap(), volume);
    let made = fs::metadata(stand.export.join("pvc-1")).unwrap();
    assert_eq!(made.permissions().mode() & 0o7777, 0o770);
    let mut request = stand.request();
    (request.volume_id, request.volume_context) = (volume.volume_id.clone(), volume.volume_context);
    stand.publish(&request).unwrap();
    fs::create_dir(stand.target.join("d")).unwrap();
    fs::write(stand.target.join("d/file"), "text").unwrap();
    stand.unpublish().unwrap();
    assert!(stand.export.join("pvc-1/d/file").exists());
    delete(&stand, &volume.volume_id).unwrap();
    delete(&stand, &volume.volume_id).unwrap();
    let left: Vec<_> = fs::read_dir(&stand.export)
        .unwrap()
        .map(|one| one.unwrap().file_name())
        .collect();
    assert_eq!(left, ["other"]);
    assert_eq!(fs::read_dir(&stand.work).unwrap().count(), 0);
    assert!(stand.mounts().is_empty());
}

#[test]
fn a_dynamic_volume_may_be_named_and_kept() {
    let Some(stand) = Stand::new() else { return };
    let claim = ("csi.storage.k8s.io/pvc/name", "claim");
    let sub = ("subDir", "team/${pvc.metadata.name}");
    let kept = [sub, claim, ("onDelete", "retain")];
    let volume = create(&stand, "pvc-1", &kept).unwrap();
    delete(&stand, &volume.volume_id).unwrap();
    assert!(stand.export.join("team/claim").is_dir());
    // Two claims may have this directory, one after the other, and the first be deleted last.
    assert_eq!(
        code(create(&stand, "pvc-2", &[sub, claim])),
        Code::InvalidArgument
    );
    let sub = ("subDir", "team/${pvc.metadata.name}-${pv.metadata.name}");
    let more = [sub, claim, ("csi.storage.k8s.io/pv/name", "pvc-2")];
    let volume = create(&stand, "pvc-2", &more).unwrap();
    assert!(stand.export.join("team/claim-pvc-2").is_dir());
    delete(&stand, &volume.volume_id).unwrap();
    assert!(!stand.export.join("team/claim-pvc-2").exists() && stand.export.join("team").is_dir());
}

/// The record of a volume's size goes with the volume, not with its directory.
#[test]
fn a_volume_that_was_kept_may_be_made_in_another_size() {
    let Some(stand) = Stand::new() else { return };
    let kept = [("onDelete", "retain")];
    let sized = |bytes| {
        let mut request = creation("pvc-1", &kept);
        request.capacity_range = Some(CapacityRange {
            required_bytes: bytes,
            limit_bytes: 0,
        });
        let made: Result<CreateVolumeResponse, _> = stand.call("Controller/CreateVolume", request);
        made
    };
    let volume = sized(1).unwrap().volume.expect("a volume");
    assert_eq!(code(sized(2)), Code::AlreadyExists);
    delete(&stand, &volume.volume_id).unwrap();
    assert_eq!(code(sized(2)), Code::Ok);
}

#[test]
fn a_volume_is_deleted_by_the_options_of_the_chart_and_of_its_secret() {
    let Some(stand) = Stand::new() else { return };
    let volume = create(&stand, "pvc-1", &[]).unwrap();
    let by = |options: &str| {
        let request = DeleteVolumeRequest {
            volume_id: volume.volume_id.clone(),
            secrets: strings([("mountOptions", options)]),
        };
        let answer: Result<DeleteVolumeResponse, _> =
            stand.call("Controller/DeleteVolume", request);
        code(answer)
    };
    assert_eq!(by("sink"), Code::InvalidArgument);
    assert!(stand.export.join("pvc-1").exists());
    assert_eq!(by("nconnect=2"), Code::Ok);
    assert!(!stand.export.join("pvc-1").exists());
}

#[test]
fn a_volume_is_not_made_or_deleted_anywhere_else() {
    let Some(stand) = Stand::new() else { return };
    let outside = stand.work.join("outside");
    fs::create_dir_all(outside.join("x")).unwrap();
    symlink(&outside, stand.export.join("link")).unwrap();
    for (more, expected, said) in [
        (
            ("subDir", "../${pv.metadata.name}"),
            Code::InvalidArgument,
            "'subDir'",
        ),
        (
            ("subDir", "a/../../${pv.metadata.name}"),
            Code::InvalidArgument,
            "'subDir'",
        ),
        (
            ("subDir", "link/${pv.metadata.name}"),
            Code::FailedPrecondition,
            "symbolic link",
        ),
        (
            ("subDir", "${pvc.metadata.name}-${pv.metadata.name}"),
            Code::InvalidArgument,
            "--extra-create-metadata",
        ),
        (
            ("mountOptions", "nofail,localports=192.0.2.1"),
            Code::Unavailable,
            "leave out 'nofail'",
        ),
        (("onDelete", "archive"), Code::InvalidArgument, "'onDelete'"),
        (("mountPermissions", "rwx"), Code::InvalidArgument, "octal"),
        (("size", "1"), Code::InvalidArgument, "'size' is not known"),
        (
            ("share", ""),
            Code::InvalidArgument,
            "set 'server' and 'share'",
        ),
        (("mountOptions", "sink"), Code::InvalidArgument, "sink"),
    ] {
        let volume = ("csi.storage.k8s.io/pv/name", "y");
        let status = create(&stand, "pvc-1", &[more, volume]).unwrap_err();
        assert_eq!(status.code(), expected, "{status}");
        assert!(status.message().contains(said), "{said}: {status}");
    }
    assert_eq!(code(create(&stand, "", &[])), Code::InvalidArgument);
    assert_eq!(code(create(&stand, "a/b", &[])), Code::InvalidArgument);
    assert_eq!(
        code(delete(&stand, "127.0.0.1#/srv#link/x")),
        Code::FailedPrecondition
    );
    for harmless in [
        "127.0.0.1#/srv#..",
        "127.0.0.1#/srv#",
        "127.0.0.1#/srv#a/../link",
        "volume",
    ] {
        assert_eq!(code(delete(&stand, harmless)), Code::Ok, "{harmless}");
    }
    assert_eq!(code(delete(&stand, "")), Code::InvalidArgument);
    assert!(outside.join("x").is_dir() && !outside.join("y").exists());
    assert_eq!(fs::read_dir(&stand.export).unwrap().count(), 1);
}

#[test]
fn what_cannot_be_created_is_refused() {
    let Some(stand) = Stand::new() else { return };
    let good = CreateVolumeRequest {
        name: "pvc-1".into(),
        volume_capabilities: vec![capability(Mode::MultiNodeMultiWriter)],
        parameters: strings([("server", "127.0.0.1"), ("share", "/srv")]),
        ..Default::default()
    };
    let mut no_capability = good.clone();
    no_capability.volume_capabilities.clear();
    let mut block = good.clone();
    block.volume_capabilities[0].block = Some(BlockVolume {});
    let mut copy = good;
    copy.volume_content_source = Some(VolumeContentSource {});
    for request in [no_capability, block, copy] {
        let answer: Result<CreateVolumeResponse, _> =
            stand.call("Controller/CreateVolume", request);
        assert_eq!(code(answer), Code::InvalidArgument);
    }
    assert_eq!(fs::read_dir(&stand.export).unwrap().count(), 0);
}

#[test]
fn capabilities_of_a_volume_are_confirmed() {
    let Some(stand) = Stand::new() else { return };
    let ask = |id: &str, context: &[(&str, &str)], capabilities: &[VolumeCapability]| {
        let context = context
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let request = ValidateVolumeCapabilitiesRequest {
            volume_id: id.into(),
            volume_context: context.collect(),
            volume_capabilities: capabilities.to_vec(),
        };
        let answer: Result<ValidateVolumeCapabilitiesResponse, _> =
            stand.call("Controller/ValidateVolumeCapabilities", request);
        answer
    };
    let good = capability(Mode::SingleNodeWriter);
    let mut block = good.clone();
    block.block = Some(BlockVolume {});
    let place = [("server", "srv"), ("share", "/a")];
    let dynamic = "srv#/a#b";
    for (id, context) in [(dynamic, &[][..]), ("mine", &place[..])] {
        let answer = ask(id, context, std::slice::from_ref(&good)).unwrap();
        assert_eq!(
            answer.confirmed.unwrap().volume_capabilities,
            std::slice::from_ref(&good)
        );
    }
    let answer = ask(dynamic, &[], &[good.clone(), block]).unwrap();
    assert!(answer.confirmed.is_none() && answer.message.contains("block"));
    assert_eq!(
        code(ask("mine", &[], std::slice::from_ref(&good))),
        Code::NotFound
    );
    assert_eq!(code(ask("", &[], &[good])), Code::InvalidArgument);
    assert_eq!(code(ask(dynamic, &[], &[])), Code::InvalidArgument);
}

#[test]
fn what_a_killed_driver_left_is_cleaned_up() {
    let Some(mut stand) = Stand::new() else {
        return;
    };
    stand.end_driver(Signal::KILL);
    let left = stand.work.join("share-left");
    fs::create_dir(&left).unwrap();
    let (rdma, nfs) = (stand.responder.rdma, stand.responder.nfs);
    let options = format!("port={rdma},mountport={nfs},mountproto=tcp,noresvport");
    stand.nfsrdma(&[
        "mount",
        "127.0.0.1:/srv",
        left.to_str().unwrap(),
        "-o",
        &options,
    ]);
    assert_eq!(stand.mounts().len(), 1);
    stand.start_driver();
    assert!(stand.mounts().is_empty() && !left.exists());
}

#[test]
fn a_driver_without_the_program_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let broken = dir.path().join("broken");
    fs::write(&broken, "echo nfsrdma: broken >&2; exit 2").unwrap();
    let broken = format!("sh {}", broken.display());
    for (program, said) in [
        ("/nowhere/nfsrdma", "No such file"),
        ("sh -c false", "did not say why"),
        (&broken, "does not work: broken; install"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_nfsrdma-csi"))
            .args(["--node-id=n", "--program", program])
            .arg(format!("--endpoint={}/csi.sock", dir.path().display()))
            .output()
            .unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(
            !output.status.success() && text.contains(said),
            "{said}: {text}"
        );
    }
}

#[test]
fn fields_have_the_numbers_of_the_specification() {
    use prost::Message;
    let request = NodePublishVolumeRequest {
        volume_id: "v".into(),
        target_path: "/t".into(),
        volume_capability: Some(VolumeCapability {
            block: None,
            mount: Some(MountVolume {
                fs_type: "f".into(),
                mount_flags: vec!["o".into()],
            }),
            access_mode: Some(AccessMode {
                mode: Mode::MultiNodeMultiWriter as i32,
            }),
        }),
        readonly: true,
        volume_context: strings([("k", "w")]),
    };
    let bytes = b"\x0a\x01v\x22\x02/t\x2a\x0c\x12\x06\x0a\x01f\x12\x01o\x1a\x02\x08\x05\x30\x01\x42\x06\x0a\x01k\x12\x01w";
    assert_eq!(request.encode_to_vec(), bytes);
    let answer = ProbeResponse { ready: Some(true) };
    assert_eq!(answer.encode_to_vec(), b"\x0a\x02\x08\x01");
}
