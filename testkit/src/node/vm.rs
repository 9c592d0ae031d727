//! A node in a virtual machine: QEMU without hardware's help, so that any machine can run one. A node in namespaces has
//! the cgroups of its machine's kernel; this one has those of version 2, whatever the machine has.
//!
//! Nothing is installed in the guest. Its root is the machine's, read-only by virtiofs below a layer in memory, so every
//! program and library is there, at the same path and of the same version. The bed's folder is shared, writable, at its own
//! path too. The first process of the guest is the node's supervisor, whose pipes lead through a virtio port; so plan,
//! orders and logs are those of every other node. What is in memory goes with the guest.
//!
//! Sockets do not lead through a shared folder, and a guest's file system is only partly the host's: commands in the guest
//! are the matter of [`super::commands`].

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use nix::unistd::Pid;
use tokio::process::Command;

use crate::progress::Progress;
use crate::request::Node;
use crate::{cache, packages, processes};

/// Drivers of the guest, which Debian's kernel has as modules. What else it needs it loads itself.
const MODULES: [&str; 5] = [
    "virtio_pci",
    "virtio_console",
    "virtio_net",
    "virtiofs",
    "overlay",
];

/// Folders of a node that are sockets' or lower folders' of overlays, which a shared folder cannot be.
pub(super) const IN_MEMORY: [&str; 4] = ["runtime", "containerd", "kubelet", "pod-logs"];

/// Of the guest, which takes as much of the machine's as it uses.
const MEGABYTES: u32 = 2560;

/// What starts in the guest before its root is there. Whoever reads the port has to wait for it.
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /lower /upper /merged
/bin/busybox --install -s /bin
mount -t devtmpfs dev /dev && mount -t proc proc /proc && mount -t sysfs sys /sys
for module in {modules}; do insmod /modules/$module; done
mount -t virtiofs -o ro host /lower
mount -t tmpfs -o mode=755 tmpfs /upper && mkdir /upper/files /upper/work
mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work overlay /merged
mount -t virtiofs bed /merged{bed}
mkdir -p /merged/lib/modules && ln -s {modules_folder} /merged/lib/modules/
ln -sf /bin/busybox /merged/sbin/modprobe
mkdir /dev/pts /dev/shm /dev/mqueue
mount -t devpts devpts /dev/pts && mount -t tmpfs tmpfs /dev/shm && mount -t mqueue mqueue /dev/mqueue
mount -t cgroup2 cgroup2 /sys/fs/cgroup
for folder in dev proc sys; do mount --move /$folder /merged/$folder; done
cd /merged/dev
until [ -e vport*p1 ]; do sleep 0.1; done
exec 3<>"$(echo vport*p1)"
export PATH={path}
exec switch_root /merged {program} supervise {bed} <&3 >&3
"#;

/// What runs outside: two processes that share folders, and the machine.
const MACHINE: &str = r#"
rm -f host.sock bed.sock
{virtiofsd} --socket-path=host.sock -o source=/ -o cache=always -o sandbox=chroot >{bed}/logs/vm-host.log 2>&1 &
{virtiofsd} --socket-path=bed.sock -o source={bed} -o sandbox=chroot >{bed}/logs/vm-bed.log 2>&1 &
for look in $(seq 200); do [ -S host.sock ] && [ -S bed.sock ] && break; sleep 0.05; done
exec nsenter --net --target {first} qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m {megabytes} \
    -object memory-backend-memfd,id=memory,size={megabytes}M,share=on -numa node,memdev=memory \
    -nodefaults -no-user-config -display none -no-reboot -serial file:{bed}/logs/vm.log \
    -kernel {kernel} -initrd initramfs.cpio -append "console=ttyS0 quiet panic=-1 mitigations=off" \
    -chardev socket,id=host,path=host.sock -device vhost-user-fs-pci,chardev=host,tag=host \
    -chardev socket,id=bed,path=bed.sock -device vhost-user-fs-pci,chardev=bed,tag=bed \
    -chardev stdio,id=supervisor,signal=off -device virtio-serial-pci -device virtserialport,chardev=supervisor \
    -netdev tap,id=link,ifname={link},script=no,downscript=no -device virtio-net-pci,netdev=link
"#;

/// Makes sure that all is there which a machine needs besides what a node needs.
pub(super) fn ensure(progress: &mut dyn FnMut(Progress)) -> Result<()> {
    if std::env::consts::ARCH != "x86_64" {
        bail!("a node in a virtual machine needs a machine of x86_64");
    }
    packages::ensure_qemu(progress)?;
    kernel(progress).map(drop)
}

/// Debian's kernel for virtual machines, with its modules and what modprobe reads; kept as long as the cache.
fn kernel(progress: &mut dyn FnMut(Progress)) -> Result<Kernel> {
    let folder = cache::entry("kernel-cloud-amd64", |folder| {
        packages::unpack_kernel(folder, progress)?;
        let tree = folder.display().to_string();
        processes::run("busybox", &["depmod", "-b", &tree, &version(folder)?]).map(drop)
    })?;
    let version = version(&folder)?;
    Ok(Kernel {
        image: folder.join(format!("boot/vmlinuz-{version}")),
        modules: folder.join("lib/modules").join(version),
    })
}

fn version(kernel: &Path) -> Result<String> {
    let folder = kernel.join("lib/modules");
    let found = fs::read_dir(&folder)?.flatten().next();
    let found = found.with_context(|| format!("{} is empty", folder.display()))?;
    Ok(found.file_name().to_string_lossy().into_owned())
}

struct Kernel {
    image: PathBuf,
    modules: PathBuf,
}

/// The command of the machine that is this node, at the end of the link in the network of the process `first`. Its stdin and stdout
/// are the supervisor's.
pub(crate) fn command(bed: &Path, node: &Node, first: Pid) -> Result<Command> {
    let kernel = kernel(&mut crate::progress::silent())?;
    write_initramfs(bed, &node.folder, &kernel)?;
    let [bed, image] = [bed, &kernel.image].map(|path| path.display().to_string());
    let virtiofsd = packages::virtiofsd().context("virtiofsd has just been found")?;
    let script = fill(
        MACHINE,
        &[
            ("bed", &bed),
            ("kernel", &image),
            ("virtiofsd", &virtiofsd.display().to_string()),
            ("first", &first.to_string()),
            ("link", &node.link()),
            ("megabytes", &MEGABYTES.to_string()),
        ],
    );
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "sh", "-c", &script])
        .current_dir(&node.folder);
    Ok(command)
}

fn write_initramfs(bed: &Path, folder: &Path, kernel: &Kernel) -> Result<()> {
    let tree = folder.join("initramfs");
    for folder in ["bin", "modules"] {
        fs::create_dir_all(tree.join(folder))?;
    }
    let busybox = packages::find("busybox").context("busybox is not installed")?;
    fs::copy(busybox, tree.join("bin/busybox"))?;
    let dependencies = fs::read_to_string(kernel.modules.join("modules.dep"))?;
    let mut modules = Vec::new();
    for path in in_order(&dependencies) {
        let (_, name) = path.rsplit_once('/').unwrap_or(("", path));
        fs::copy(kernel.modules.join(path), tree.join("modules").join(name))?;
        modules.push(name);
    }
    let program = std::env::current_exe()?;
    let [bed, program, of_kernel] =
        [bed, &program, &kernel.modules].map(|path| path.display().to_string());
    let path = processes::search_path();
    let init = fill(
        INIT,
        &[
            ("bed", &bed),
            ("program", &program),
            ("modules", &modules.join(" ")),
            ("modules_folder", &of_kernel),
            ("path", &path.to_string_lossy()),
        ],
    );
    let place = tree.join("init");
    fs::write(&place, init)?;
    fs::set_permissions(&place, fs::Permissions::from_mode(0o755))?;
    let archive = File::create(folder.join("initramfs.cpio"))?;
    let mut cpio = std::process::Command::new("sh");
    cpio.args(["-c", "find . | busybox cpio -o -H newc"])
        .current_dir(&tree)
        .stdout(archive);
    processes::run_command(&mut cpio).map(drop)
}

/// The files of [`MODULES`] and of what they need, each after what it needs. A line of `modules.dep` names a file and, from
/// the last to be loaded to the first, what has to be loaded before.
fn in_order(dependencies: &str) -> Vec<&str> {
    let mut seen = BTreeSet::new();
    let mut files = Vec::new();
    for module in MODULES {
        let line = dependencies.lines().filter_map(|line| line.split_once(':'));
        let mut line = line.filter(|(file, _)| file.ends_with(&format!("/{module}.ko")));
        // What is in the kernel itself has no line.
        let Some((file, needed)) = line.next() else {
            continue;
        };
        let needed = needed.split_whitespace().rev();
        files.extend(needed.chain([file]).filter(|file| seen.insert(*file)));
    }
    files
}

/// The template with its `{name}`s replaced.
fn fill(template: &str, values: &[(&str, &str)]) -> String {
    values
        .iter()
        .fold(template.to_owned(), |text, (name, value)| {
            text.replace(&format!("{{{name}}}"), value)
        })
}

#[cfg(test)]
mod tests {
    use super::in_order;

    #[test]
    fn modules_come_after_what_they_need_and_once() {
        let dependencies = "drivers/virtio_pci.ko: drivers/virtio.ko drivers/virtio_ring.ko\n\
            drivers/virtio_ring.ko:\nfs/virtiofs.ko: fs/fuse.ko drivers/virtio.ko drivers/virtio_ring.ko\n";
        assert_eq!(
            in_order(dependencies),
            [
                "drivers/virtio_ring.ko",
                "drivers/virtio.ko",
                "drivers/virtio_pci.ko",
                "fs/fuse.ko",
                "fs/virtiofs.ko"
            ]
        );
    }
}
