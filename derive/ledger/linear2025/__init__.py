"""tmp"""
from derive.ledger.entry import Entry
from derive.ledger.linear2025.claims import full_batch, online, structured, action, channels, scaling
def _e(n,c): return Entry(source='linear2025',number=n,title='x',printed='x',verdict='agrees',why='x.',derived='x',claim=c)
ENTRIES=tuple(_e(n,c) for n,c in {'10':full_batch.losses,'11':full_batch.f11,'13':full_batch.f13,'14':full_batch.f14,'15':full_batch.f15,'26 text':full_batch.a26_text,'62':full_batch.f62,'65':full_batch.f65,'69':full_batch.f69,'69 text':full_batch.f69_text,'97':online.f97,'98':online.f98,'98 text':online.f98_text,'100':online.f100,'57':action.f57,'58':action.f58,'59':action.f59,'19':structured.f19,'107':structured.f107,'108':structured.f108,'109':structured.f109,'110':structured.f110,'111':structured.f111,'111 text':structured.f111_text,'70':scaling.f70,'21':scaling.f21,'121':channels.f121,'123':channels.f123}.items())
