"""The messages between server and clients: orders and replies as Flower records.

A reader checks every part of a message. FedKeel's own apps send the trainable vector as one flat
float32 array, since Flower posts every array of a message separately. The buffers go into the same
ArrayRecord, so that a message always holds exactly one. Ordinary Flower clients get and return
named arrays. A method's own vectors travel as bytes in the ConfigRecord. Nothing is unpickled.
"""
