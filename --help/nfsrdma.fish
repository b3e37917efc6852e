# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_nfsrdma_global_optspecs
    string join \n h/help V/version
end

function __fish_nfsrdma_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_nfsrdma_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_nfsrdma_using_subcommand
    set -l cmd (__fish_nfsrdma_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c nfsrdma -n "__fish_nfsrdma_needs_command" -s h -l help -d 'Print help'
complete -c nfsrdma -n "__fish_nfsrdma_needs_command" -s V -l version -d 'Print version'
complete -c nfsrdma -n "__fish_nfsrdma_needs_command" -f -a "mount" -d 'Mount an NFSv3 export over RDMA'
complete -c nfsrdma -n "__fish_nfsrdma_needs_command" -f -a "umount" -d 'Unmount'
complete -c nfsrdma -n "__fish_nfsrdma_needs_command" -f -a "exports" -d 'List what a server exports'
complete -c nfsrdma -n "__fish_nfsrdma_needs_command" -f -a "ping" -d 'Test a server step by step'
complete -c nfsrdma -n "__fish_nfsrdma_needs_command" -f -a "stats" -d 'Show what a mount is doing, or list all mounts'
complete -c nfsrdma -n "__fish_nfsrdma_needs_command" -f -a "top" -d 'Watch all mounts: rates, latencies, credits, caches'
complete -c nfsrdma -n "__fish_nfsrdma_needs_command" -f -a "metrics" -d 'Serve the metrics of all mounts of this host for Prometheus'
complete -c nfsrdma -n "__fish_nfsrdma_needs_command" -f -a "log" -d 'Show or change how much a mount logs'
complete -c nfsrdma -n "__fish_nfsrdma_needs_command" -f -a "trace" -d 'Show a mount\'s calls as they happen'
complete -c nfsrdma -n "__fish_nfsrdma_needs_command" -f -a "capture" -d 'Record a mount\'s RPC-over-RDMA traffic for Wireshark'
complete -c nfsrdma -n "__fish_nfsrdma_needs_command" -f -a "upgrade" -d 'Exchange the program that serves a mount for the one that is installed now'
complete -c nfsrdma -n "__fish_nfsrdma_needs_command" -f -a "fstab" -d 'Translate an fstab line of the kernel\'s NFS client'
complete -c nfsrdma -n "__fish_nfsrdma_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand mount" -s o -l options -d 'Mount options, separated by commas; may be given more than once' -r
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand mount" -l log -d 'Write the log to FILE instead of syslog; SIGHUP opens it anew' -r -F
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand mount" -s t -l types -d 'Accepted if it is nfsrdma, as mount(8) has it' -r
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand mount" -s v -l verbose -d 'Log and print more (level debug); given twice, log each call (level trace)'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand mount" -l dead -d 'Mount again all mounts of /etc/fstab whose process has ended; no other argument is allowed'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand mount" -s f -l foreground -d 'Stay in the foreground and log to standard error'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand mount" -s r -l read-only -d 'Mount read-only (-o ro)'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand mount" -s w -l rw -d 'Mount read-write (-o rw, the default)'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand mount" -s n -l no-mtab -d 'Accepted for mount(8); there is no /etc/mtab to write'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand mount" -s s -l sloppy -d 'Ignore options that are not known (-o sloppy)'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand mount" -s h -l help -d 'Print help'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand umount" -s f -l force -d 'Give up calls that wait for the server'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand umount" -s l -l lazy -d 'Detach the mount now; its process ends when nobody uses it any more'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand umount" -s v -l verbose -d 'Print each step'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand umount" -s h -l help -d 'Print help'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand exports" -s o -l options -d 'Mount options, separated by commas; may be given more than once' -r
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand exports" -s v -l verbose -d 'Log and print more (level debug); given twice, log each call (level trace)'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand exports" -s h -l help -d 'Print help'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand ping" -s o -l options -d 'Mount options, separated by commas; may be given more than once' -r
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand ping" -s v -l verbose -d 'Log and print more (level debug); given twice, log each call (level trace)'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand ping" -s h -l help -d 'Print help'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand stats" -l watch -d 'Print again every SECONDS (2 by default); text shows the changes since, with rates' -r
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand stats" -l json -d 'Print one JSON document; with --watch one on each line'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand stats" -l mountstats -d 'Print the format of /proc/self/mountstats, for \'mountstats -f FILE\''
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand stats" -l prometheus -d 'Print Prometheus text'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand stats" -s v -l verbose -d 'Show the options of all mounts, too (with DIR they always are)'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand stats" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand top" -s d -l delay -d 'Seconds between two updates' -r
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand top" -s n -l count -d 'End after COUNT intervals' -r
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand top" -s u -l users -d 'Show which users and processes load the servers (on a terminal also by the key u)'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand top" -s b -l batch -d 'Print plain text, a block for each interval, also on a terminal'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand top" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand metrics" -s l -l listen -d 'Where to serve: ADDRESS:PORT, PORT (on 127.0.0.1) or unix:/PATH' -r
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand metrics" -s h -l help -d 'Print help'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand log" -s h -l help -d 'Print help'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand trace" -l procedure -d 'Show only these procedures, separated by commas (READ,WRITE), also GETACL and SETACL, and of NLM LOCK, UNLOCK, TEST and CANCEL; OTHER stands for calls of other programs' -r
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand trace" -l slow -d 'Show only calls that take at least MS milliseconds' -r
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand trace" -l json -d 'One JSON object on each line'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand trace" -l errors -d 'Show only calls that end with an error'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand trace" -l sent -d 'Print a line also when a call is sent, not only when it has ended'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand trace" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand capture" -l snaplen -d 'Record at most N bytes of each message and of each chunk\'s data (all of them by default)' -r
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand capture" -l seconds -d 'End after N seconds' -r
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand capture" -l packets -d 'End after N packets' -r
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand capture" -l size -d 'End when the file has N bytes, or NK, NM, NG' -r
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand capture" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand upgrade" -s a -l all -d 'All mounts that can be upgraded; each of the others is named with the reason'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand upgrade" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand fstab" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand help; and not __fish_seen_subcommand_from mount umount exports ping stats top metrics log trace capture upgrade fstab help" -f -a "mount" -d 'Mount an NFSv3 export over RDMA'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand help; and not __fish_seen_subcommand_from mount umount exports ping stats top metrics log trace capture upgrade fstab help" -f -a "umount" -d 'Unmount'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand help; and not __fish_seen_subcommand_from mount umount exports ping stats top metrics log trace capture upgrade fstab help" -f -a "exports" -d 'List what a server exports'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand help; and not __fish_seen_subcommand_from mount umount exports ping stats top metrics log trace capture upgrade fstab help" -f -a "ping" -d 'Test a server step by step'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand help; and not __fish_seen_subcommand_from mount umount exports ping stats top metrics log trace capture upgrade fstab help" -f -a "stats" -d 'Show what a mount is doing, or list all mounts'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand help; and not __fish_seen_subcommand_from mount umount exports ping stats top metrics log trace capture upgrade fstab help" -f -a "top" -d 'Watch all mounts: rates, latencies, credits, caches'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand help; and not __fish_seen_subcommand_from mount umount exports ping stats top metrics log trace capture upgrade fstab help" -f -a "metrics" -d 'Serve the metrics of all mounts of this host for Prometheus'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand help; and not __fish_seen_subcommand_from mount umount exports ping stats top metrics log trace capture upgrade fstab help" -f -a "log" -d 'Show or change how much a mount logs'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand help; and not __fish_seen_subcommand_from mount umount exports ping stats top metrics log trace capture upgrade fstab help" -f -a "trace" -d 'Show a mount\'s calls as they happen'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand help; and not __fish_seen_subcommand_from mount umount exports ping stats top metrics log trace capture upgrade fstab help" -f -a "capture" -d 'Record a mount\'s RPC-over-RDMA traffic for Wireshark'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand help; and not __fish_seen_subcommand_from mount umount exports ping stats top metrics log trace capture upgrade fstab help" -f -a "upgrade" -d 'Exchange the program that serves a mount for the one that is installed now'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand help; and not __fish_seen_subcommand_from mount umount exports ping stats top metrics log trace capture upgrade fstab help" -f -a "fstab" -d 'Translate an fstab line of the kernel\'s NFS client'
complete -c nfsrdma -n "__fish_nfsrdma_using_subcommand help; and not __fish_seen_subcommand_from mount umount exports ping stats top metrics log trace capture upgrade fstab help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'

function __nfsrdma_options
    set -l done (string match -r '^.*,' -- (commandline -ct))
    for word in vers=3 nfsvers=3 v3 rsize= wsize= proto=rdma proto=rdma6 rdma port= nconnect= sec=sys xprtsec=none transport=auto transport=iwarp transport=verbs write_chunk=pz write_chunk=reduced inline= credits= crc nocrc fpdu= bg fg retry= mounthost= mountaddr= mountport= mountproto=tcp mountproto=udp mountproto=rdma mountproto=auto mountvers=3 resvport noresvport hard soft softerr timeo= retrans= intr nointr acregmin= acregmax= acdirmin= acdirmax= actimeo= ac noac cto nocto lookupcache=all lookupcache=positive lookupcache=none rdirplus rdirplus=force nordirplus rdirplus=none write=lazy write=eager write=wait cache= dirty= readahead= nofsc nosharecache softreval nosoftreval alignwrite noalignwrite acl noacl lock nolock local_lock=none local_lock=flock local_lock=posix local_lock=all lockport= callbackport= callbackport=none allow_other noallow_other permissions=kernel permissions=server default_permissions workers= restart=no restart=files threads= metrics= metrics=unix:/PATH defaults ro rw suid nosuid dev nodev exec noexec symfollow nosymfollow sync async dirsync atime noatime relatime norelatime strictatime nostrictatime diratime nodiratime context= fscontext= defcontext= rootcontext= seclabel user users owner group nouser noowner nogroup auto noauto _netdev comment= quota noquota usrquota grpquota lazytime nolazytime iversion noiversion mand nomand silent loud nofail fail sloppy remount addr= namlen= bsize= posix noposix nomigration notrunkdiscovery minorversion=0 nfsprog=100003 mountprog=100005 fatal_neterrors=default fatal_neterrors=none
        echo "$done$word"
    end
end
complete -c nfsrdma -n "__fish_seen_subcommand_from mount exports ping" -s o -l options -r -f -a '(__nfsrdma_options)'

# Characters are octal in the table.
function __nfsrdma_mounts
    while read -l source dir type rest
        if test "$type" = fuse.nfsrdma
            printf '%b\n' (string replace -a '\\' '\\0' -- $dir)
        end
    end </proc/self/mounts
end
complete -c nfsrdma -n "__fish_seen_subcommand_from umount stats top log trace upgrade" -f -a '(__nfsrdma_mounts)'
complete -c nfsrdma -n "__fish_seen_subcommand_from capture" -a '(__nfsrdma_mounts)'
