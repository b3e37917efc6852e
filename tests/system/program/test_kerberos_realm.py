"""The realm of the tests of Kerberos does what they rely on."""

import os

import pytest

from program.realm import NAME, SECURE, Realm, program
from suites import state, until


@pytest.fixture
def realm():
    with Realm() as realm:
        yield realm


def test_users_get_tickets_of_their_own(realm, users):
    alice, bob, _ = users
    assert realm.kinit("alice", alice) == realm.ccache(alice)
    assert realm.ccache(alice).stat().st_uid == alice.uid
    assert realm.has_ticket(alice) and not realm.has_ticket(bob)
    realm.kinit("bob", bob)
    said = realm.as_user(bob, program("klist")).stdout
    assert f"Default principal: bob@{NAME}" in said
    wrong = realm.try_kinit("alice", bob, password="wrong")
    assert wrong.returncode != 0 and "Password incorrect" in wrong.stderr
    realm.kdestroy(alice)
    assert not realm.has_ticket(alice) and realm.has_ticket(bob)


def test_a_ticket_expires(realm):
    realm.kinit("alice", None, "-l", "3s")
    assert realm.has_ticket()
    until(lambda: not realm.has_ticket(), "the end of a ticket's life")
    realm.kinit("alice")
    assert realm.has_ticket()


def test_a_kdc_that_is_down_comes_back(realm):
    realm.kinit("alice")
    realm.stop()
    assert realm.has_ticket(), "a ticket is the user's own"
    refused = realm.try_kinit("alice")
    assert refused.returncode != 0 and "Cannot contact any KDC" in refused.stderr
    realm.start()
    realm.kinit("alice")


def test_the_keytab_has_what_a_server_and_a_machine_need(realm):
    words = realm.as_user(None, program("klist"), "-k", realm.keytab).stdout.split()
    assert {f"nfs/localhost@{NAME}", f"host/localhost@{NAME}"} <= set(words)
    result = realm.as_user(None, program("kinit"), "-k", "host/localhost")
    assert result.returncode == 0, result.stderr
    # Other services' keys are added to it.
    realm.add_services("nfs/elsewhere")
    words = realm.as_user(None, program("klist"), "-k").stdout.split()
    assert {f"nfs/localhost@{NAME}", f"nfs/elsewhere@{NAME}"} <= set(words)
    assert realm.as_user(None, program("kinit"), "-k", "nfs/elsewhere").returncode == 0


def test_session_keys_have_the_enctype_that_was_chosen():
    with Realm(enctypes=[SECURE]) as realm:
        realm.kinit("alice")
        said = realm.as_user(None, program("klist"), "-e").stdout
        assert f"Etype (skey, tkt): {SECURE}," in said, said


def test_a_realm_leaves_nothing():
    with Realm() as realm:
        child, base = realm.child, realm.base
        # The KDC's process can read nothing that is not the realm's.
        if os.geteuid() == 0:
            assert os.stat(f"/proc/{child.pid}").st_uid != 0
    assert not base.exists() and state(child.pid) is None
