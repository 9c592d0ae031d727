use rstest::rstest;
use serde_json::{Value, json};

use super::*;

const ID: &str = "2d7262e604505735e4d161269565987ec95a85fb7142ea2fe9a83591c33cdb4c";

const LIMITS: &str = "\
Limit                     Soft Limit           Hard Limit           Units     
Max cpu time              unlimited            unlimited            seconds   
Max file size             unlimited            unlimited            bytes     
Max data size             unlimited            unlimited            bytes     
Max stack size            8388608              unlimited            bytes     
Max core file size        0                    unlimited            bytes     
Max resident set          unlimited            unlimited            bytes     
Max processes             96365                96365                processes 
Max open files            1024                 20000                files     
Max locked memory         8388608              8388608              bytes     
Max address space         unlimited            unlimited            bytes     
Max file locks            unlimited            unlimited            locks     
Max pending signals       96365                96365                signals   
Max msgqueue size         819200               819200               bytes     
Max nice priority         0                    0                    
Max realtime priority     0                    0                    
Max realtime timeout      unlimited            unlimited            us        
";

/// Of a node with cgroups of version 1.
const MOUNTINFO: &str = "\
47 46 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
48 47 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:5 - cgroup cgroup rw,cpu,cpuacct
52 47 0:33 / /sys/fs/cgroup/devices rw,relatime - cgroup cgroup rw,devices
56 47 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
57 47 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
58 47 0:29 /below /elsewhere rw,relatime - cgroup cgroup rw,memory
";

fn cgroup() -> String {
    format!("/kubepods/besteffort/podbc51034c/{ID}")
}

/// What containerd 1.6 tells of a container of a pod without anything special, but for what is not read.
fn of_containerd() -> Value {
    let capabilities = ["CAP_CHOWN", "CAP_KILL", "CAP_AUDIT_WRITE"];
    json!({"sandboxID": "edbb", "pid": 326, "removing": false, "snapshotter": "overlayfs",
        "runtimeType": "io.containerd.runc.v2", "runtimeOptions": {"systemd_cgroup": false}, "config": {"tty": false},
        "runtimeSpec": {"ociVersion": "1.0.2-dev",
            "process": {"user": {"uid": 0, "gid": 0, "additionalGids": [10, 0, 10]}, "args": ["/target", "pause"],
                "env": ["PATH=/bin:/sbin", "HOSTNAME=one"], "cwd": "/",
                "capabilities": {"bounding": capabilities, "effective": capabilities, "permitted": capabilities},
                "oomScoreAdj": 1000},
            "root": {"path": "rootfs"}, "mounts": [], "annotations": {},
            "linux": {"resources": {}, "cgroupsPath": cgroup(), "maskedPaths": [], "readonlyPaths": [],
                "namespaces": [{"type": "pid"}, {"type": "ipc", "path": "/proc/294/ns/ipc"},
                    {"type": "uts", "path": "/proc/294/ns/uts"}, {"type": "mount"},
                    {"type": "network", "path": "/proc/294/ns/net"}]}}})
}

/// What CRI-O tells: no type of a runtime, cgroups by their unit, and some limits.
fn of_crio() -> Value {
    let mut info = of_containerd();
    let object = info.as_object_mut().unwrap();
    object.remove("runtimeType");
    object.remove("runtimeOptions");
    object.insert("privileged".to_owned(), json!(false));
    let process = &mut info["runtimeSpec"]["process"];
    process["rlimits"] = json!([{"type": "RLIMIT_NOFILE", "hard": 20_000, "soft": 1_024}]);
    process["noNewPrivileges"] = json!(true);
    let unit = format!("kubepods-besteffort-podbc51.slice:crio:{ID}");
    info["runtimeSpec"]["linux"]["cgroupsPath"] = json!(unit);
    info
}

fn of_version_1() -> InitFacts {
    let cgroup = cgroup();
    InitFacts {
        cgroup: format!(
            "9:name=systemd:{cgroup}\n5:devices:{cgroup}\n3:misc:/\n1:cpuacct,cpu:{cgroup}\n0::/\n"
        ),
        status: "Name:\ttarget\nUmask:\t0022\nPPid:\t300\nNSpid:\t326\t1\n".to_owned(),
        limits: LIMITS.to_owned(),
        parent_limits: LIMITS.replace("1024 ", "20000"),
        parent_status: "Name:\tcontainerd-shim\nUmask:\t0022\n".to_owned(),
        same_users: true,
    }
}

fn plan(info: &Value, facts: &InitFacts, mountinfo: &str) -> Result<Plan, Detour> {
    let info = ContainerInfo::parse(&info.to_string())?;
    Plan::new(ID, &info, facts, &CgroupMounts::parse(mountinfo))
}

#[test]
fn a_container_of_containerd_is_entered_as_its_specification_says() {
    let plan = plan(&of_containerd(), &of_version_1(), MOUNTINFO).unwrap();
    let file = |folder: &str, path: &str| format!("/sys/fs/cgroup/{folder}{path}/cgroup.procs");
    let cgroup = cgroup();
    let capabilities = 1 | 1 << 5 | 1 << 29;
    let expected = Plan {
        // A hierarchy that is not mounted cannot be entered, and holds no container.
        cgroups: vec![
            file("systemd", &cgroup),
            file("devices", &cgroup),
            file("cpu,cpuacct", &cgroup),
            file("unified", "/"),
        ],
        keyring: format!("_ses.{ID}"),
        oom_score_adj: 1000,
        limits: plan.limits.clone(),
        cwd: "/".to_owned(),
        env: vec!["PATH=/bin:/sbin".to_owned(), "HOSTNAME=one".to_owned()],
        uid: 0,
        gid: 0,
        groups: vec![0, 10],
        no_new_privileges: false,
        bounding: capabilities,
        effective: capabilities,
        inheritable: 0,
        permitted: capabilities,
        ambient: 0,
    };
    assert_eq!(plan, expected);
    assert_eq!(plan.limits.len(), 16);
    assert_eq!(plan.limits[3], [8_388_608, u64::MAX]);
    assert_eq!(plan.limits[7], [1_024, 20_000]);
}

#[rstest]
#[case("")]
#[case("/container")]
fn a_container_of_cri_o_is_found_in_its_unit(#[case] inner: &str) {
    let path = format!(
        "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podbc51.slice/crio-{ID}.scope{inner}"
    );
    let facts = InitFacts {
        cgroup: format!("0::{path}\n"),
        parent_limits: LIMITS.replace("20000 ", "99999 "),
        ..of_version_1()
    };
    let mounts = "25 30 0:22 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate";
    let plan = plan(&of_crio(), &facts, mounts).unwrap();
    assert_eq!(plan.cgroups, [format!("/sys/fs/cgroup{path}/cgroup.procs")]);
    assert!(plan.no_new_privileges);
    assert_eq!(plan.limits[7], [1_024, 20_000]);
}

/// Something of the runtime's status.
#[rstest]
#[case("/runtimeType", json!("io.containerd.kata.v2"), Detour::Sandbox)]
#[case("/runtimeType", json!("io.containerd.runsc.v1"), Detour::Sandbox)]
#[case("/runtimeSpec/vm", json!({}), Detour::Sandbox)]
#[case("/runtimeSpec/process/user", json!({"uid": 0, "gid": 0, "umask": 63}), Detour::Specification)]
#[case("/runtimeSpec/process/scheduler", json!({}), Detour::Specification)]
#[case("/runtimeSpec/process/ioPriority", json!({}), Detour::Specification)]
#[case("/runtimeSpec/process/env", json!(["A=1", "A=2"]), Detour::Specification)]
#[case("/runtimeSpec/process/env", json!(["A"]), Detour::Specification)]
#[case("/runtimeSpec/process/env", json!(["=A"]), Detour::Specification)]
#[case("/runtimeSpec/process/env", json!(["HOME="]), Detour::Specification)]
#[case("/runtimeSpec/process/env", json!(["A=\u{0}"]), Detour::Specification)]
#[case("/runtimeSpec/process/env", json!([format!("A={}", "x".repeat(MAX_REQUEST_BYTES))]), Detour::Specification)]
#[case("/runtimeSpec/linux/personality", json!({}), Detour::Specification)]
#[case("/runtimeSpec/linux/intelRdt", json!({}), Detour::Specification)]
#[case("/runtimeSpec/linux/seccomp", json!({"defaultAction": "SCMP_ACT_ALLOW"}), Detour::Seccomp)]
#[case("/runtimeSpec/process/apparmorProfile", json!("cri-containerd.apparmor.d"), Detour::SecurityModule)]
#[case("/runtimeSpec/process/selinuxLabel", json!("system_u:system_r:container_t:s0"), Detour::SecurityModule)]
#[case("/runtimeSpec/process/capabilities/bounding", json!(["CAP_SYS_PTRACE"]), Detour::Capabilities)]
#[case("/runtimeSpec/process/capabilities/ambient", json!(["CAP_NEW"]), Detour::Capabilities)]
#[case("/runtimeSpec/linux/uidMappings", json!([{"containerID": 0}]), Detour::Namespaces)]
#[case("/runtimeSpec/linux/namespaces", json!([{"type": "mount"}]), Detour::Namespaces)]
#[case("/runtimeSpec/linux/namespaces", json!([{"type": "mount"}, {"type": "pid", "path": "/proc/2/ns/pid"}]), Detour::Namespaces)]
#[case("/runtimeSpec/linux/namespaces", json!([{"type": "mount"}, {"type": "pid"}, {"type": "user"}]), Detour::Namespaces)]
#[case("/runtimeSpec/linux/namespaces", json!([{"type": "mount"}, {"type": "pid"}, {"type": "time"}]), Detour::Namespaces)]
#[case("/runtimeSpec/linux/cgroupsPath", json!("/kubepods/another"), Detour::Cgroup)]
#[case("/runtimeSpec/linux/cgroupsPath", json!(""), Detour::Cgroup)]
#[case("/runtimeSpec/linux/cgroupsPath", json!("a.slice:b"), Detour::Cgroup)]
#[case("/runtimeSpec/process/rlimits", json!([{"type": "RLIMIT_NOFILE", "hard": 7, "soft": 7}]), Detour::Limits)]
#[case("/runtimeSpec/process/rlimits", json!([{"type": "RLIMIT_NEW", "hard": 7, "soft": 7}]), Detour::Limits)]
#[case("/pid", json!(327), Detour::Process)]
#[case("/pid", json!(0), Detour::Process)]
#[case("/runtimeSpec", json!(null), Detour::Status)]
#[case("/pid", json!("326"), Detour::Status)]
fn what_only_the_runtime_can_do_is_left_to_it(
    #[case] place: &str,
    #[case] value: Value,
    #[case] reason: Detour,
) {
    let mut info = of_containerd();
    let (parent, field) = place.rsplit_once('/').unwrap();
    info.pointer_mut(parent).unwrap()[field] = value;
    assert_eq!(plan(&info, &of_version_1(), MOUNTINFO), Err(reason));
}

#[test]
fn a_process_that_is_not_the_containers_is_not_entered() {
    let facts = of_version_1();
    let cgroup = cgroup();
    let with_status = |status: &str| InitFacts {
        status: status.to_owned(),
        ..facts.clone()
    };
    let with_cgroup = |cgroup: String| InitFacts {
        cgroup,
        ..facts.clone()
    };
    let cases = [
        // Not the first process of a namespace, or one within another.
        (with_status("NSpid:\t326\t7\n"), Detour::Process),
        (with_status("NSpid:\t326\n"), Detour::Process),
        (with_status("NSpid:\t326\t9\t1\n"), Detour::Process),
        (with_status(""), Detour::Process),
        (
            InitFacts {
                same_users: false,
                ..facts.clone()
            },
            Detour::Namespaces,
        ),
        // Of another container, or in a cgroup that it has made.
        (
            with_cgroup("5:devices:/kubepods/other\n".to_owned()),
            Detour::Cgroup,
        ),
        (
            with_cgroup(format!("5:devices:{cgroup}/inner\n")),
            Detour::Cgroup,
        ),
        (
            with_cgroup(format!("5:devices:{cgroup}/container\n")),
            Detour::Cgroup,
        ),
        (with_cgroup("0::/\n".to_owned()), Detour::Cgroup),
        (with_cgroup(format!("7:memory:{cgroup}\n")), Detour::Cgroup),
        (with_cgroup("nonsense\n".to_owned()), Detour::Cgroup),
        (
            InitFacts {
                limits: LIMITS.replace("96365", "5    "),
                ..facts.clone()
            },
            Detour::Limits,
        ),
        (
            InitFacts {
                parent_limits: String::new(),
                ..facts.clone()
            },
            Detour::Limits,
        ),
        (
            InitFacts {
                parent_status: "Umask:\t0077\n".to_owned(),
                ..facts.clone()
            },
            Detour::Specification,
        ),
    ];
    for (facts, reason) in cases {
        assert_eq!(
            plan(&of_containerd(), &facts, MOUNTINFO),
            Err(reason),
            "{facts:?}"
        );
    }
}
